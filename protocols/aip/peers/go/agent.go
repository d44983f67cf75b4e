// An agent and a tool of AIP over gRPC, written from the document and generated from the .proto in it (protocols/aip/0.0.1).
//
//	aip                          prints the addresses of both, and serves until its standard input ends
//	aip GATEWAY AGENT TOOL       registers both at a gateway, speaks to AGENT and calls TOOL there, prints what it heard, and serves
//
// aip.pb.go and aip_grpc.pb.go are what protoc-gen-go and protoc-gen-go-grpc make of the .proto.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	agentName      = "go-agent"
	toolName       = "go-tool"
	sessionSeconds = 300 * time.Second
	beat           = 10 * time.Second
	maxOpen        = 128
)

type node struct {
	UnimplementedAgentServiceServer
	UnimplementedToolServiceServer
	sync.Mutex
	open map[string]bool // the ids of the sessions
}

func text(value string) []*ContentItem {
	return []*ContentItem{{Data: &ContentItem_Text{Text: value}}}
}

// begin opens the session of the first message of a stream.
func (me *node) begin(first *AgentMessage) error {
	me.Lock()
	defer me.Unlock()
	switch {
	case first.SessionStatus != AgentMessage_START_QUEST || first.SessionId == "":
		return status.Error(codes.InvalidArgument, "The first message of a stream is START_QUEST, and names its session.")
	case me.open[first.SessionId]:
		return status.Error(codes.InvalidArgument, "This session is open.")
	case first.ReceiverId != agentName:
		return status.Error(codes.NotFound, "This is another agent.")
	case len(me.open) >= maxOpen:
		return status.Error(codes.ResourceExhausted, "Too many sessions are open.")
	}
	me.open[first.SessionId] = true
	return nil
}

func (me *node) end(session string) {
	me.Lock()
	defer me.Unlock()
	delete(me.open, session)
}

// fault returns the reason for which a message may not follow the first one, or "".
func fault(first, message *AgentMessage) string {
	if message.SessionId != first.SessionId || message.SenderId != first.SenderId || message.ReceiverId != first.ReceiverId {
		return "A stream has one session, one sender and one receiver."
	}
	if message.SessionStatus != AgentMessage_HOLD_QUEST && message.SessionStatus != AgentMessage_STOP_QUEST {
		return "The initiator sends HOLD_QUEST and STOP_QUEST."
	}
	return ""
}

// CallAgent repeats the content of each inquiry, and answers STOP_QUEST with STOP_RESPONSE.
func (me *node) CallAgent(stream grpc.BidiStreamingServer[AgentMessage, AgentMessage]) error {
	first, err := stream.Recv()
	if err == io.EOF {
		return status.Error(codes.Aborted, "The stream ended before its first message.")
	}
	if err != nil {
		return err
	}
	if err := me.begin(first); err != nil {
		return err
	}
	defer me.end(first.SessionId)
	answer := func(state AgentMessage_SessionStatus, to string, content []*ContentItem) error {
		return stream.Send(&AgentMessage{SenderId: agentName, ReceiverId: first.SenderId, SessionId: first.SessionId,
			SessionStatus: state, ReplyToMessageId: to, Content: content})
	}
	messages, failed := make(chan *AgentMessage), make(chan error, 1)
	go func() {
		for message, err := first, error(nil); ; message, err = stream.Recv() {
			if err != nil {
				failed <- err
				return
			}
			select {
			case messages <- message:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	for isFirst := true; ; isFirst = false {
		select {
		case message := <-messages:
			if reason := fault(first, message); !isFirst && reason != "" {
				return errors.Join(answer(AgentMessage_STOP_RESPONSE, "", text(reason)), status.Error(codes.InvalidArgument, reason))
			}
			if message.SessionStatus == AgentMessage_STOP_QUEST {
				return answer(AgentMessage_STOP_RESPONSE, message.MessageId, message.Content)
			}
			if err := answer(AgentMessage_HOLD_RESPONSE, message.MessageId, message.Content); err != nil {
				return err
			}
		case err := <-failed:
			if err != io.EOF {
				return err
			}
			return answer(AgentMessage_STOP_RESPONSE, "", text("The initiator ended the stream."))
		case <-time.After(sessionSeconds):
			return answer(AgentMessage_STOP_RESPONSE, "", text("The session was silent too long."))
		}
	}
}

// CallTool returns the argument `text` in capitals.
func (*node) CallTool(_ context.Context, request *ToolRequest) (*ToolResponse, error) {
	if request.ReceiverId != toolName {
		return nil, status.Error(codes.NotFound, "This is another tool.")
	}
	answer := &ToolResponse{SenderId: toolName, ReceiverId: request.SenderId, SessionId: request.SessionId}
	argument, isThere := request.Arguments["text"]
	if !isThere {
		answer.IsError, answer.ErrorMessage = true, "The argument text is missing."
		return answer, nil
	}
	answer.Content = text(strings.ToUpper(argument))
	return answer, nil
}

func serve(register func(grpc.ServiceRegistrar)) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := grpc.NewServer()
	register(server)
	go server.Serve(listener)
	return listener.Addr().String(), nil
}

// talk holds a session with an agent of the gateway, and returns what it answered.
func talk(gateway GatewayServiceClient, receiver string) ([]string, error) {
	stream, err := gateway.RouteAgentCalling(context.Background())
	if err != nil {
		return nil, err
	}
	var heard []string
	session := fmt.Sprint("from-go-", time.Now().UnixNano())
	for index, state := range []AgentMessage_SessionStatus{AgentMessage_START_QUEST, AgentMessage_HOLD_QUEST, AgentMessage_STOP_QUEST} {
		message := &AgentMessage{SenderId: agentName, ReceiverId: receiver, SessionId: session, SessionStatus: state,
			Content: text(fmt.Sprint("inquiry ", index))}
		if err := stream.Send(message); err != nil {
			return nil, err
		}
		answer, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		heard = append(heard, answer.SessionStatus.String()+" "+answer.Content[0].GetText())
	}
	if _, err = stream.Recv(); err != io.EOF {
		return nil, fmt.Errorf("the stream did not end: %v", err)
	}
	return heard, nil
}

// join registers both nodes at a gateway and keeps them registered, and calls an agent and a tool there.
func join(told map[string]any, address, receiver, tool string) error {
	ctx := context.Background()
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	gateway := NewGatewayServiceClient(connection)
	register := map[string]func() (int, error){
		agentName: func() (int, error) {
			answer, err := gateway.RegisterAgent(ctx, &AgentInfo{AgentId: agentName, Address: told["agent"].(string), Domain: "foreign",
				InputMode: []Mode{Mode_TEXT, Mode_IMAGE}, OutputMode: []Mode{Mode_AUDIO},
				Skills: []*AgentInfo_AgentSkill{{SkillId: "echo", Capability: "repeats"}}})
			return len(answer.GetPeers()), err
		},
		toolName: func() (int, error) {
			info := &ToolInfo{ToolId: toolName, Address: told["tool"].(string), Arguments: map[string]string{"text": "str"}}
			_, err := gateway.RegisterTool(ctx, info)
			return 0, err
		},
	}
	if told["peers"], err = register[agentName](); err != nil {
		return err
	}
	if _, err = register[toolName](); err != nil {
		return err
	}
	go func() {
		for range time.Tick(beat) {
			for name, again := range register {
				if answer, err := gateway.Heartbeat(ctx, &HeartbeatRequest{SenderId: name}); err == nil && !answer.Success {
					again()
				}
			}
		}
	}()
	nodes, err := gateway.GetNodes(ctx, &GetNodesRequest{AgentId: agentName, Domain: "foreign"})
	if err != nil {
		return err
	}
	called, err := gateway.RouteToolCalling(ctx, &ToolRequest{SenderId: agentName, ReceiverId: tool, SessionId: "s", ToolName: tool,
		Arguments: map[string]string{"text": "grüß"}})
	if err != nil {
		return err
	}
	heard, err := talk(gateway, receiver)
	told["nodes"], told["answer"], told["heard"] = len(nodes.Peers), called.Content[0].GetText(), heard
	return err
}

func run(arguments []string) (map[string]any, error) {
	me := &node{open: map[string]bool{}}
	agent, err := serve(func(server grpc.ServiceRegistrar) { RegisterAgentServiceServer(server, me) })
	if err != nil {
		return nil, err
	}
	tool, err := serve(func(server grpc.ServiceRegistrar) { RegisterToolServiceServer(server, me) })
	told := map[string]any{"agent": agent, "tool": tool}
	if err == nil && len(arguments) == 3 {
		err = join(told, arguments[0], arguments[1], arguments[2])
	}
	return told, err
}

func main() {
	told, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	json.NewEncoder(os.Stdout).Encode(told)
	io.Copy(io.Discard, os.Stdin)
}
