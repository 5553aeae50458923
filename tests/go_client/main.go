// Command client has ext_proc conversations with a picker, as a proxy that uses gRPC for Go would.
//
//	client -address 127.0.0.1:9002 [-ca FILE [-cert FILE -key FILE]]
//
// Each line of its input is a case, in JSON; for each it prints one line, what became of the streams.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log"
	"os"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

const (
	piece       = 16 << 10
	largest     = 64 << 20
	destination = "x-gateway-destination-endpoint"
)

// A testCase is what its streams have in common.
type testCase struct {
	Name string `json:"name"`
	// How many streams there are, all at once, on one connection.
	Streams int `json:"streams"`
	// Bytes of the request's body.
	Body int `json:"body"`
	// Bytes of the response's body, which the picker is shown if Duplex.
	Response int `json:"response"`
	// Whether bodies are sent in pieces (FULL_DUPLEX_STREAMED) and come back in pieces, or the request's at once.
	Duplex bool `json:"duplex"`
	// Whether messages are compressed.
	Gzip bool `json:"gzip"`
	// Milliseconds of a deadline, for which the client says nothing.
	Deadline int `json:"deadline"`
	// After which answer the call is cancelled.
	Cancel string `json:"cancel"`
	// Another method than Process: the call has no messages.
	Method string `json:"method"`
	// Whether the picker is asked for its health instead.
	Health bool `json:"health"`
}

// An outcome is what became of a stream; Count says of how many.
type outcome struct {
	// The answers, those of the same kind in a row as one.
	Answers     []string `json:"answers"`
	Destination string   `json:"destination"`
	// Whether both bodies came back as they were, if they were to.
	Echoed bool   `json:"echoed"`
	Code   string `json:"code"`
	Count  int    `json:"count"`
}

func main() {
	address := flag.String("address", "", "of the picker's ext_proc port")
	ca := flag.String("ca", "", "file with the certificates that the picker's has to be signed by; none: no TLS")
	cert := flag.String("cert", "", "file with the client's certificate")
	key := flag.String("key", "", "file with its key")
	flag.Parse()
	connection, err := grpc.NewClient(
		*address,
		grpc.WithTransportCredentials(secure(*ca, *cert, *key)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest), grpc.MaxCallSendMsgSize(largest)),
	)
	check(err)
	cases, printed := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var one testCase
		if err := cases.Decode(&one); err == io.EOF {
			return
		} else {
			check(err)
		}
		check(printed.Encode(map[string]any{"name": one.Name, "outcomes": play(connection, one)}))
	}
}

func secure(ca, cert, key string) credentials.TransportCredentials {
	if ca == "" {
		return insecure.NewCredentials()
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	trusted, err := os.ReadFile(ca)
	check(err)
	config.RootCAs.AppendCertsFromPEM(trusted)
	if cert != "" {
		own, err := tls.LoadX509KeyPair(cert, key)
		check(err)
		config.Certificates = []tls.Certificate{own}
	}
	return credentials.NewTLS(config)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// play returns the outcomes of all streams, each once with its count.
func play(connection *grpc.ClientConn, one testCase) []outcome {
	ended := make([]outcome, max(one.Streams, 1))
	var streams sync.WaitGroup
	for number := range ended {
		streams.Add(1)
		go func() {
			defer streams.Done()
			ended[number] = call(connection, one)
		}()
	}
	streams.Wait()
	var distinct []outcome
	seen := map[string]int{}
	for _, each := range ended {
		text, err := json.Marshal(each)
		check(err)
		at, found := seen[string(text)]
		if !found {
			at = len(distinct)
			seen[string(text)] = at
			distinct = append(distinct, each)
		}
		distinct[at].Count++
	}
	return distinct
}

func call(connection *grpc.ClientConn, one testCase) outcome {
	limit := time.Minute
	if one.Deadline > 0 {
		limit = time.Duration(one.Deadline) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	ended := outcome{Answers: []string{}}
	if one.Health {
		answer, err := grpc_health_v1.NewHealthClient(connection).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		if err == nil {
			ended.Answers = append(ended.Answers, answer.GetStatus().String())
		}
		ended.Code = status.Code(err).String()
		return ended
	}
	method, options := extproc.ExternalProcessor_Process_FullMethodName, []grpc.CallOption{}
	if one.Method != "" {
		method = one.Method
	}
	if one.Gzip {
		options = append(options, grpc.UseCompressor(gzip.Name))
	}
	stream, err := connection.NewStream(ctx, &extproc.ExternalProcessor_ServiceDesc.Streams[0], method, options...)
	if err == nil {
		talk := &conversation{stream: stream, outcome: &ended, cancel: cancel, cancelAfter: one.Cancel}
		if one.Deadline > 0 {
			err = talk.read()
		} else if one.Method == "" {
			err = talk.have(one)
		}
		if err == nil {
			err = talk.end()
		}
	}
	ended.Code = status.Code(err).String()
	return ended
}

// A conversation is one stream of ext_proc.
type conversation struct {
	stream      grpc.ClientStream
	outcome     *outcome
	cancel      context.CancelFunc
	cancelAfter string
	echo        bytes.Buffer
}

func (c *conversation) have(one testCase) error {
	request := []byte(`{"model":"m","messages":[{"role":"user","content":""}]}`)
	request = append(bytes.Repeat([]byte(" "), max(one.Body-len(request), 0)), request...)
	response := bytes.Repeat([]byte("data: x\n"), one.Response/8)
	mode := filter.ProcessingMode_BUFFERED
	if one.Duplex {
		mode = filter.ProcessingMode_FULL_DUPLEX_STREAMED
	}
	modes := &extproc.ProtocolConfiguration{RequestBodyMode: mode}
	if one.Duplex {
		modes.ResponseBodyMode = mode
	}
	first := headers(":method", "POST", ":path", "/v1/chat/completions", "content-type", "application/json")
	err := c.send(&extproc.ProcessingRequest{
		Request:        &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: first},
		ProtocolConfig: modes,
	})
	if err == nil && !one.Duplex {
		err = c.read()
	}
	if err == nil {
		err = c.body(request, one.Duplex, func(body *extproc.HttpBody) *extproc.ProcessingRequest {
			return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: body}}
		})
	}
	if err == nil {
		shown := headers(":status", "200", "content-type", "text/event-stream")
		err = c.send(&extproc.ProcessingRequest{
			Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: shown},
		})
	}
	if err == nil {
		err = c.read()
	}
	if err == nil && one.Duplex {
		return c.body(response, true, func(body *extproc.HttpBody) *extproc.ProcessingRequest {
			return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseBody{ResponseBody: body}}
		})
	}
	if err == nil {
		err = c.send(&extproc.ProcessingRequest{
			Request: &extproc.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extproc.HttpTrailers{}},
		})
	}
	if err == nil {
		err = c.read()
	}
	return err
}

// body sends a body, and reads until its end has come back, or its one answer.
func (c *conversation) body(
	body []byte, duplex bool, wrapped func(*extproc.HttpBody) *extproc.ProcessingRequest,
) error {
	if !duplex {
		if err := c.send(wrapped(&extproc.HttpBody{Body: body, EndOfStream: true})); err != nil {
			return err
		}
		return c.read()
	}
	sent := make(chan error, 1)
	go func() { // meanwhile its pieces come back
		for at := 0; ; at += piece {
			end := at+piece >= len(body)
			err := c.send(wrapped(&extproc.HttpBody{Body: body[at:min(at+piece, len(body))], EndOfStream: end}))
			if err != nil || end {
				sent <- err
				return
			}
		}
	}()
	c.echo.Reset()
	for end := false; !end; {
		answer, err := c.receive()
		if err != nil {
			return err
		}
		part := answer.GetRequestBody()
		if part == nil {
			part = answer.GetResponseBody()
		}
		streamed := part.GetResponse().GetBodyMutation().GetStreamedResponse()
		c.echo.Write(streamed.GetBody())
		end = streamed.GetEndOfStream()
	}
	c.outcome.Echoed = bytes.Equal(c.echo.Bytes(), body)
	if err := <-sent; err != nil || c.outcome.Echoed {
		return err
	}
	return errors.New("the body is another one")
}

func (c *conversation) send(message *extproc.ProcessingRequest) error {
	err := c.stream.SendMsg(message)
	if err == io.EOF { // the stream has ended; how, a reader is told
		err = c.read()
	}
	return err
}

func (c *conversation) read() error {
	_, err := c.receive()
	return err
}

func (c *conversation) receive() (*extproc.ProcessingResponse, error) {
	answer := new(extproc.ProcessingResponse)
	if err := c.stream.RecvMsg(answer); err != nil {
		return nil, err
	}
	kind, mutation := "", (*extproc.HeaderMutation)(nil)
	switch part := answer.GetResponse().(type) {
	case *extproc.ProcessingResponse_RequestHeaders:
		kind, mutation = "request headers", part.RequestHeaders.GetResponse().GetHeaderMutation()
	case *extproc.ProcessingResponse_RequestBody:
		kind, mutation = "request body", part.RequestBody.GetResponse().GetHeaderMutation()
	case *extproc.ProcessingResponse_ResponseHeaders:
		kind = "response headers"
	case *extproc.ProcessingResponse_ResponseBody:
		kind = "response body"
	case *extproc.ProcessingResponse_ResponseTrailers:
		kind = "response trailers"
	case *extproc.ProcessingResponse_ImmediateResponse:
		kind = "immediate response"
	}
	for _, set := range mutation.GetSetHeaders() {
		if set.GetHeader().GetKey() == destination {
			c.outcome.Destination = string(set.GetHeader().GetRawValue())
		}
	}
	if said := c.outcome.Answers; len(said) == 0 || said[len(said)-1] != kind {
		c.outcome.Answers = append(said, kind)
	}
	if kind == c.cancelAfter {
		c.cancel()
		return c.receive() // no answer is under way
	}
	return answer, nil
}

// end sends the last word, and waits for that of the picker.
func (c *conversation) end() error {
	if err := c.stream.CloseSend(); err != nil {
		return err
	}
	for {
		if _, err := c.receive(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func headers(pairs ...string) *extproc.HttpHeaders {
	shown := &core.HeaderMap{}
	for at := 0; at < len(pairs); at += 2 {
		shown.Headers = append(shown.Headers, &core.HeaderValue{Key: pairs[at], RawValue: []byte(pairs[at+1])})
	}
	return &extproc.HttpHeaders{Headers: shown}
}
