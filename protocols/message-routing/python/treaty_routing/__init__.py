"""Message routing with the names of its source, MetaGPT: roles, their actions, and the environment between them.

    from treaty_routing import Action, Environment, Message, Role

    environment = Environment()
    environment.add_roles([Writer(), Reviewer()])
    environment.publish_message(Message(content="A poem about rain", send_to=Writer))
    while not environment.is_idle:
        await environment.run()

In one process it needs neither a registry nor an extra. The same role joins an environment at another agent by `agents`, which
needs `pip install '.[agent]'`.

    handler        the rules (a link to protocols/message-routing/1.0/handler)
    message        messages, and names of classes
    action, role   the source's classes; a role is the application of a member
    environment    the environment of one process
    agents         members and environments that are agents
    conform        the rules, tried at foreign peers: `treaty conform routing`
"""

from __future__ import annotations

from .action import Action as Action
from .action import UserRequirement as UserRequirement
from .environment import Context as Context
from .environment import Environment as Environment
from .message import MESSAGE_ROUTE_TO_ALL as MESSAGE_ROUTE_TO_ALL
from .message import MESSAGE_ROUTE_TO_NONE as MESSAGE_ROUTE_TO_NONE
from .message import MESSAGE_ROUTE_TO_SELF as MESSAGE_ROUTE_TO_SELF
from .message import Message as Message
from .message import any_to_str as any_to_str
from .message import any_to_str_set as any_to_str_set
from .role import Role as Role
