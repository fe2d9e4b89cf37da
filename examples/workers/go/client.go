package main

import (
	"context"
	"crypto/rand"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"time"

	pb "gemps.dev/gen/gemps/v1"
	"google.golang.org/grpc"
)

const (
	chunkBytes = 1 << 20  // of the payloads that are sent; the contract allows up to 2 MiB
	wholeBytes = 64 << 10 // payloads up to this size go in one message, without a wait for proceed
	float32s   = pb.WireType_WIRE_TYPE_FLOAT32
)

// errDamaged: a payload whose CRC32C is not its footer's.
var errDamaged = errors.New("the parameters were damaged on their way")

// client is a session with a server. After a failure of any method the caller begins again. Not safe for concurrent use.
type client struct {
	server  pb.WorkerServiceClient
	join    *pb.JoinRequest
	job     *task
	joined  *pb.JoinResponse // the last one, or nil
	commits pb.WorkerService_CommitClient

	held     *state      // the parameters that the server sent last, or nil
	version  *pb.Version // of held
	sequence uint64      // of the last commit that was applied
	eta      float64     // of the next commit
	run      pb.RunState // FINISHED also if this worker's budget alone is spent
}

func newClient(connection grpc.ClientConnInterface, name string, job *task) *client {
	session, wire := make([]byte, 16), []pb.WireType{float32s}
	if _, err := rand.Read(session); err != nil {
		panic(err) // the system has no random numbers
	}
	host, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // equal in all containers of a machine
	return &client{server: pb.NewWorkerServiceClient(connection), job: job, join: &pb.JoinRequest{
		SessionId: session, WorkerName: name, HostId: strings.TrimSpace(string(host)), Layout: job.layout.message(),
		DeltaWireTypes: wire, ParameterWireTypes: wire, StepsPerEpoch: job.stepsPerEpoch, Agent: "gemps-go/0.1",
	}}
}

// begin joins, uploads parameters if the server has none, pulls, and opens a Commit stream that lives as long as ctx.
// The upload is what the client holds, from a server that was restarted without it, or else the task's first state.
func (c *client) begin(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	joined, err := c.server.Join(limited, c.join)
	if err != nil {
		return err
	}
	c.joined, c.sequence, c.eta, c.run = joined, joined.LastAppliedSequence, joined.NextEta, joined.RunState
	if !joined.HasParameters {
		start := c.job.first(joined.Settings.GetSeed())
		if c.held != nil {
			start = *c.held
		}
		if err := c.initialize(ctx, start.encode()); err != nil {
			return err
		}
	}
	if err := c.pull(ctx); err != nil {
		return err
	}
	c.commits, err = c.server.Commit(ctx)
	return err
}

func (c *client) initialize(ctx context.Context, payload []byte) error {
	stream, err := c.server.Initialize(ctx)
	if err != nil {
		return err
	}
	header := &pb.InitializeHeader{SessionId: c.join.SessionId, ByteCount: uint64(len(payload))}
	if stream.Send(&pb.InitializeRequest{Header: header}) == nil {
		transmit(payload, func(chunk []byte, end *pb.Footer) error {
			return stream.Send(&pb.InitializeRequest{Chunk: chunk, Footer: end})
		})
	}
	_, err = stream.CloseAndRecv() // also has the reason why Send failed
	return err
}

func (c *client) pull(ctx context.Context) error {
	stream, err := c.server.Pull(ctx, &pb.PullRequest{SessionId: c.join.SessionId})
	if err != nil {
		return err
	}
	return c.receive(func() (*pb.ParametersHeader, []byte, *pb.Footer, error) {
		message, err := stream.Recv()
		return message.GetHeader(), message.GetChunk(), message.GetFooter(), err
	})
}

// commit sends a gradient, of which eta times the negative is the delta, and installs the parameters that come back.
func (c *client) commit(gradient state, loss float64, samples int) error {
	payload, scale := gradient.encode(), -float32(c.eta)
	header := &pb.CommitHeader{
		SessionId: c.join.SessionId, Sequence: c.sequence + 1, BaseVersion: c.version, WireType: float32s,
		ByteCount: uint64(len(payload)), Scale: &scale, Loss: &loss, Samples: uint64(samples),
	}
	if err := c.send(header, payload); err != nil && err != io.EOF { // EOF: Recv returns the reason
		return err
	}
	return c.receive(func() (*pb.ParametersHeader, []byte, *pb.Footer, error) {
		message, err := c.commits.Recv()
		if verdict := message.GetVerdict(); verdict != nil {
			c.sequence, c.eta, c.run = verdict.Sequence, verdict.NextEta, verdict.RunState
		}
		return message.GetParameters(), message.GetChunk(), message.GetFooter(), err
	})
}

func (c *client) send(header *pb.CommitHeader, payload []byte) error {
	if len(payload) <= wholeBytes {
		return c.commits.Send(&pb.CommitRequest{Header: header, Chunk: payload, Footer: footer(payload)})
	}
	if err := c.commits.Send(&pb.CommitRequest{Header: header}); err != nil {
		return err
	}
	if _, err := c.commits.Recv(); err != nil { // proceed
		return err
	}
	return transmit(payload, func(chunk []byte, end *pb.Footer) error {
		return c.commits.Send(&pb.CommitRequest{Chunk: chunk, Footer: end})
	})
}

// transmit sends a payload as chunks, the last one with the footer.
func transmit(payload []byte, send func([]byte, *pb.Footer) error) error {
	end := footer(payload)
	for ; len(payload) > chunkBytes; payload = payload[chunkBytes:] {
		if err := send(payload[:chunkBytes], nil); err != nil {
			return err
		}
	}
	return send(payload, end)
}

// receive installs a payload; next returns the parts of the next message.
func (c *client) receive(next func() (*pb.ParametersHeader, []byte, *pb.Footer, error)) error {
	var announced *pb.ParametersHeader
	var payload []byte
	for {
		header, chunk, end, err := next()
		if err != nil {
			return err
		}
		if header != nil {
			announced = header
		}
		payload = append(payload, chunk...)
		if end == nil {
			continue
		}
		if string(announced.GetLayoutDigest()) != string(c.joined.LayoutDigest) {
			return errors.New("the server sent the parameters of another model")
		}
		if end.Crc32C != footer(payload).Crc32C {
			return errDamaged
		}
		received, err := c.job.layout.decode(payload)
		if err == nil {
			c.held, c.version = &received, announced.Version
		}
		return err
	}
}

// leave ends the session. Its result does not matter: without it the session expires.
func (c *client) leave(reason string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c.server.Leave(ctx, &pb.LeaveRequest{SessionId: c.join.SessionId, Reason: reason})
}

func footer(payload []byte) *pb.Footer {
	return &pb.Footer{Crc32C: crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli))}
}
