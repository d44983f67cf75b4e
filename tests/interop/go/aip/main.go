// A peer of AIP in Go, generated from the same .proto: `aip GATEWAY` registers an agent and a tool at a gateway, calls the tool
// "upper" and the agent "python" there, and prints what came back. It serves until its standard input ends.
//
// aip.pb.go and aip_grpc.pb.go are what protoc-gen-go and protoc-gen-go-grpc make of protocols/aip/python/treaty_aip/stubs/aip.proto.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

type node struct {
	UnimplementedAgentServiceServer
	UnimplementedToolServiceServer
}

// CallAgent answers each inquiry with its content, and ends with STOP_RESPONSE.
func (node) CallAgent(stream grpc.BidiStreamingServer[AgentMessage, AgentMessage]) error {
	for {
		message, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		status := AgentMessage_HOLD_RESPONSE
		if message.SessionStatus == AgentMessage_STOP_QUEST {
			status = AgentMessage_STOP_RESPONSE
		}
		answer := &AgentMessage{
			SenderId: message.ReceiverId, ReceiverId: message.SenderId, SessionId: message.SessionId,
			SessionStatus: status, ReplyToMessageId: message.MessageId, TaskInfo: message.TaskInfo, Content: message.Content,
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
		if status == AgentMessage_STOP_RESPONSE {
			return nil
		}
	}
}

// CallTool repeats the arguments.
func (node) CallTool(_ context.Context, request *ToolRequest) (*ToolResponse, error) {
	text, err := json.Marshal(request.Arguments)
	if err != nil {
		return nil, err
	}
	content := []*ContentItem{{Data: &ContentItem_Text{Text: string(text)}}}
	return &ToolResponse{SenderId: request.ReceiverId, ReceiverId: request.SenderId, SessionId: request.SessionId, Content: content}, nil
}

func serve() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := grpc.NewServer()
	RegisterAgentServiceServer(server, node{})
	RegisterToolServiceServer(server, node{})
	go server.Serve(listener)
	return listener.Addr().String(), nil
}

func talk(gateway GatewayServiceClient) ([]string, error) {
	ctx := context.Background()
	stream, err := gateway.RouteAgentCalling(ctx)
	if err != nil {
		return nil, err
	}
	var heard []string
	for index, status := range []AgentMessage_SessionStatus{AgentMessage_START_QUEST, AgentMessage_HOLD_QUEST, AgentMessage_STOP_QUEST} {
		message := &AgentMessage{
			SenderId: "go-agent", ReceiverId: "python", SessionId: "from-go", SessionStatus: status,
			Content: []*ContentItem{{Data: &ContentItem_Text{Text: fmt.Sprint("inquiry ", index)}}},
		}
		if err := stream.Send(message); err != nil {
			return nil, err
		}
		answer, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		heard = append(heard, answer.SessionStatus.String()+" "+answer.Content[0].GetText())
	}
	_, err = stream.Recv()
	if err != io.EOF {
		return nil, fmt.Errorf("the stream did not end: %v", err)
	}
	return heard, nil
}

func run(address string) (map[string]any, error) {
	ctx := context.Background()
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	gateway := NewGatewayServiceClient(connection)
	agent, err := serve()
	if err != nil {
		return nil, err
	}
	tool, err := serve()
	if err != nil {
		return nil, err
	}
	registered, err := gateway.RegisterAgent(ctx, &AgentInfo{
		AgentId: "go-agent", Address: agent, Name: "go", Domain: "go", InputMode: []Mode{Mode_TEXT, Mode_IMAGE},
		OutputMode: []Mode{Mode_AUDIO}, Skills: []*AgentInfo_AgentSkill{{SkillId: "echo", Capability: "repeats"}}, Version: "1",
	})
	if err != nil {
		return nil, err
	}
	info := &ToolInfo{ToolId: "go-tool", Address: tool, Arguments: map[string]string{"x": "any"}}
	if _, err := gateway.RegisterTool(ctx, info); err != nil {
		return nil, err
	}
	nodes, err := gateway.GetNodes(ctx, &GetNodesRequest{AgentId: "go-agent", Domain: "go"})
	if err != nil {
		return nil, err
	}
	alive, err := gateway.Heartbeat(ctx, &HeartbeatRequest{SenderId: "go-agent"})
	if err != nil {
		return nil, err
	}
	called, err := gateway.RouteToolCalling(ctx, &ToolRequest{
		SenderId: "go-agent", ReceiverId: "upper", SessionId: "s", Arguments: map[string]string{"text": "grüß"},
	})
	if err != nil {
		return nil, err
	}
	heard, err := talk(gateway)
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"peers": len(registered.Peers), "nodes": len(nodes.Peers), "alive": alive.Success,
		"tool": called.Content[0].GetText(), "heard": heard,
	}, nil
}

func main() {
	told, err := run(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	json.NewEncoder(os.Stdout).Encode(told)
	io.Copy(io.Discard, os.Stdin)
}
