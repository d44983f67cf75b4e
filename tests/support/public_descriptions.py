"""Three public descriptions and a card, written by hand after their texts: the Swagger Petstore (OpenAPI 3.0), Simple Math
(OpenRPC), the time server of Model Context Protocol, and the route planner of the A2A specification. Long texts are shortened."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _many(name: str) -> Json:
    return {"type": "array", "items": _ref(name)}


def _media(schema: Json, *types: str) -> Json:
    return {"content": {name: {"schema": schema} for name in types}}


def _answers(success: Json | None, code: str = "200", **errors: str) -> Json:
    """The answers of an operation; XML comes first where the Petstore has it."""
    answers: Json = {}
    if success is not None:
        answers[code] = {
            "description": "successful operation",
            **(_media(success, "application/xml", "application/json") if success else {}),
        }
    return answers | {name.removeprefix("_"): {"description": text} for name, text in errors.items()}


def _parameter(name: str, where: str, schema: Json, text: str = "") -> Json:
    return {"name": name, "in": where, "description": text, "required": where == "path", "schema": schema}


def _operation(
    name: str, text: str, answers: Json, *parameters: Json, body: Json | None = None, auth: str = "petstore_auth"
) -> Json:
    types = ("application/json", "application/xml", "application/x-www-form-urlencoded")
    return {
        "operationId": name,
        "summary": text,
        "responses": answers,
        **({"parameters": [*parameters]} if parameters else {}),
        **({"requestBody": {"required": True, **_media(body, *types)}} if body else {}),
        **({"security": [{auth: []}]} if auth else {}),
    }


_ID: Json = {"type": "integer", "format": "int64", "example": 10}
_TEXT: Json = {"type": "string"}
_PET_ID = _parameter("petId", "path", {"type": "integer", "format": "int64"}, "ID of the pet")
_ORDER_ID = _parameter("orderId", "path", {"type": "integer", "format": "int64"}, "ID of the order")
_USER_NAME = _parameter("username", "path", _TEXT, "The name of the user")
_STATUS: Json = {"type": "string", "enum": ["available", "pending", "sold"], "default": "available"}
PETSTORE: Json = {
    "openapi": "3.0.2",
    "servers": [{"url": "/v3"}],
    "info": {
        "title": "Swagger Petstore - OpenAPI 3.0",
        "description": "This is a sample Pet Store Server based on the OpenAPI 3.0 specification.\n\nYou can find more at [Swagger](http://swagger.io).",
        "version": "1.0.26-SNAPSHOT",
        "license": {"name": "Apache 2.0", "url": "http://www.apache.org/licenses/LICENSE-2.0.html"},
    },
    "paths": {
        "/pet": {
            "post": _operation(
                "addPet", "Add a new pet to the store", _answers(_ref("Pet"), _400="Invalid input"), body=_ref("Pet")
            ),
            "put": _operation(
                "updatePet",
                "Update an existing pet by Id",
                _answers(_ref("Pet"), _400="Validation exception", _404="Pet not found"),
                body=_ref("Pet"),
            ),
        },
        "/pet/findByStatus": {
            "get": _operation(
                "findPetsByStatus",
                "Finds Pets by status",
                _answers(_many("Pet"), _400="Invalid status value"),
                _parameter("status", "query", _STATUS),
            )
        },
        "/pet/findByTags": {
            "get": _operation(
                "findPetsByTags",
                "Finds Pets by tags",
                _answers(_many("Pet"), _400="Invalid tag value"),
                _parameter("tags", "query", {"type": "array", "items": _TEXT}),
            )
        },
        "/pet/{petId}": {
            "get": _operation(
                "getPetById", "Find pet by ID", _answers(_ref("Pet"), _404="Pet not found"), _PET_ID, auth="api_key"
            ),
            "post": _operation(
                "updatePetWithForm",
                "Updates a pet in the store with form data",
                _answers(None, _400="Invalid input"),
                _PET_ID,
                _parameter("name", "query", _TEXT),
                _parameter("status", "query", _TEXT),
            ),
            "delete": _operation(
                "deletePet",
                "Deletes a pet",
                _answers(None, _400="Invalid pet value"),
                _parameter("api_key", "header", _TEXT),
                _PET_ID,
            ),
        },
        "/pet/{petId}/uploadImage": {
            "post": {
                **_operation("uploadFile", "uploads an image", _answers(_ref("ApiResponse")), _PET_ID),
                "requestBody": _media({"type": "string", "format": "binary"}, "application/octet-stream"),
            }
        },
        "/store/inventory": {
            "get": _operation(
                "getInventory",
                "Returns pet inventories by status",
                _answers({"type": "object", "additionalProperties": {"type": "integer", "format": "int32"}}),
                auth="api_key",
            )
        },
        "/store/order": {
            "post": _operation(
                "placeOrder",
                "Place an order for a pet",
                _answers(_ref("Order"), _400="Invalid input"),
                body=_ref("Order"),
                auth="",
            )
        },
        "/store/order/{orderId}": {
            "get": _operation(
                "getOrderById", "Find purchase order by ID", _answers(_ref("Order"), _404="Order not found"), _ORDER_ID, auth=""
            ),
            "delete": _operation(
                "deleteOrder", "Delete purchase order by ID", _answers(None, _404="Order not found"), _ORDER_ID, auth=""
            ),
        },
        "/user": {"post": _operation("createUser", "Create user", _answers(_ref("User"), "default"), body=_ref("User"), auth="")},
        "/user/createWithList": {
            "post": _operation(
                "createUsersWithListInput", "Creates list of users", _answers(_ref("User")), body=_many("User"), auth=""
            )
        },
        "/user/login": {
            "get": _operation(
                "loginUser",
                "Logs user into the system",
                _answers(_TEXT, _400="Invalid username/password supplied"),
                _parameter("username", "query", _TEXT),
                _parameter("password", "query", _TEXT),
                auth="",
            )
        },
        "/user/logout": {"get": _operation("logoutUser", "Logs out current user session", _answers({}, "default"), auth="")},
        "/user/{username}": {
            "get": _operation(
                "getUserByName", "Get user by user name", _answers(_ref("User"), _404="User not found"), _USER_NAME, auth=""
            ),
            "put": _operation("updateUser", "Update user", _answers({}, "default"), _USER_NAME, body=_ref("User"), auth=""),
            "delete": _operation("deleteUser", "Delete user", _answers(None, _404="User not found"), _USER_NAME, auth=""),
        },
    },
    "components": {
        "schemas": {
            "Order": {
                "type": "object",
                "properties": {
                    "id": _ID,
                    "petId": _ID,
                    "quantity": {"type": "integer", "format": "int32", "example": 7},
                    "shipDate": {"type": "string", "format": "date-time"},
                    "status": {"type": "string", "enum": ["placed", "approved", "delivered"], "example": "approved"},
                    "complete": {"type": "boolean"},
                },
                "xml": {"name": "order"},
            },
            "User": {
                "type": "object",
                "properties": {
                    "id": _ID,
                    **dict.fromkeys(("username", "firstName", "lastName", "email", "password", "phone"), _TEXT),
                },
            },
            "Category": {"type": "object", "properties": {"id": _ID, "name": {"type": "string", "example": "Dogs"}}},
            "Tag": {"type": "object", "properties": {"id": _ID, "name": _TEXT}},
            "Pet": {
                "required": ["name", "photoUrls"],
                "type": "object",
                "properties": {
                    "id": _ID,
                    "name": {"type": "string", "example": "doggie"},
                    "category": _ref("Category"),
                    "photoUrls": {"type": "array", "xml": {"wrapped": True}, "items": _TEXT},
                    "tags": {"type": "array", "items": _ref("Tag")},
                    "status": {"type": "string", "enum": ["available", "pending", "sold"]},
                },
            },
            "ApiResponse": {
                "type": "object",
                "properties": {"code": {"type": "integer", "format": "int32"}, "type": _TEXT, "message": _TEXT},
            },
        },
        "securitySchemes": {"api_key": {"type": "apiKey", "name": "api_key", "in": "header"}},
    },
}
_INTEGERS = [{"name": name, "schema": _ref("Integer")} for name in "ab"]


def _calculation(name: str, a: str, b: str, answer: str) -> Json:
    example = {
        "params": [{"$ref": f"#/components/examples/{each}"} for each in (a, b)],
        "result": {"$ref": f"#/components/examples/{answer}"},
    }
    return {
        "name": name,
        "params": _INTEGERS,
        "result": {"$ref": "#/components/contentDescriptors/Integer"},
        "examples": [{"name": "example", **example}],
    }


SIMPLE_MATH: Json = {
    "openrpc": "1.0.0-rc1",
    "info": {"title": "Simple Math", "description": "A simple math example", "version": "1.0.0"},
    "methods": [_calculation("addition", "two", "two", "four"), _calculation("subtraction", "eight", "four", "four")],
    "components": {
        "contentDescriptors": {"Integer": {"name": "Integer", "schema": {"type": "integer"}}},
        "schemas": {"Integer": {"type": "integer"}},
        "examples": {name: {"name": name, "value": value} for name, value in (("two", 2), ("four", 4), ("eight", 8))},
    },
}
_ZONE = "IANA timezone name (e.g., 'America/New_York', 'Europe/London')."
TIME_TOOLS: Json = {
    "jsonrpc": "2.0",
    "id": 2,
    "result": {
        "tools": [
            {
                "name": "get_current_time",
                "description": "Get current time in a specific timezone",
                "inputSchema": {
                    "type": "object",
                    "properties": {"timezone": {"type": "string", "description": _ZONE}},
                    "required": ["timezone"],
                },
                "annotations": {"readOnlyHint": True},
            },
            {
                "name": "convert_time",
                "description": "Convert time between timezones",
                "inputSchema": {
                    "type": "object",
                    "properties": {
                        "source_timezone": {"type": "string", "description": f"Source {_ZONE}"},
                        "time": {"type": "string", "description": "Time to convert in 24-hour format (HH:MM)"},
                        "target_timezone": {"type": "string", "description": f"Target {_ZONE}"},
                    },
                    "required": ["source_timezone", "time", "target_timezone"],
                },
            },
        ]
    },
}
ROUTE_PLANNER: Json = {
    "protocolVersion": "0.3.0",
    "name": "GeoSpatial Route Planner Agent",
    "description": "Provides advanced route planning, traffic analysis, and custom map generation services.",
    "url": "https://georoute-agent.example.com/a2a/v1",
    "version": "1.2.0",
    "capabilities": {"streaming": True},
    "skills": [
        {
            "id": "route-optimizer-traffic",
            "name": "Traffic-Aware Route Optimizer",
            "description": "Calculates the optimal driving route between two or more locations.",
            "tags": ["maps", "routing"],
            "examples": ["Plan a route from 'Amphitheatre Parkway, Mountain View' to 'San Francisco Airport' avoiding tolls."],
            "inputModes": ["application/json", "text/plain"],
            "outputModes": ["application/json", "application/vnd.geo+json"],
        },
        {
            "id": "custom-map-generator",
            "name": "Personalized Map Generator",
            "description": "Creates custom maps.",
            "tags": ["maps"],
        },
    ],
}
