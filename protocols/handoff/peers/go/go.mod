module treaty/peers/handoff

go 1.25.0

require (
	github.com/coder/websocket v1.8.14
	github.com/gowebpki/jcs v1.0.2
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.2
)

require golang.org/x/text v0.14.0 // indirect
