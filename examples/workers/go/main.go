// A gemps worker in Go: trains a perceptron on handwritten digits beside workers in other languages.
//
// This file has the options, and the loop that is the one rule of docs/protocol.md.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	pb "gemps.dev/gen/gemps/v1"
	"golang.org/x/oauth2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/oauth"
	"google.golang.org/grpc/keepalive"
)

// Exit statuses.
const (
	failed    = 1
	refused   = 2 // for good; also wrong usage
	notSpoken = 3 // the wire types of the conformance kit
)

var (
	server   = flag.String("server", environment("GEMPS_SERVER", "localhost:50051"), "`HOST:PORT` of the server")
	name     = flag.String("name", environment("GEMPS_WORKER_NAME", fmt.Sprintf("go-%d", os.Getpid())), "its own in the run")
	file     = flag.String("task", "digits.json", "`FILE` that gemps export-task digits wrote")
	folder   = flag.String("credentials", "", "`FOLDER` of gemps certs for a worker: connect with TLS and its token")
	interval = flag.Duration("log-interval", 5*time.Second, "between two lines about the training; 0: a line a step")
)

func main() {
	flag.Parse()
	rand.Seed(time.Now().UnixNano()) // so that workers wait for different times after a failure
	ctx, cancel := context.WithCancel(context.Background())
	stop, exit := make(chan os.Signal, 1), failed
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		exit = 128 + int((<-stop).(syscall.Signal))
		cancel()
	}()
	err := run(ctx)
	if err == nil && ctx.Err() == nil {
		return
	}
	if end, isEnding := err.(*ending); isEnding {
		exit = end.exit
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", *name, err)
	os.Exit(exit)
}

// run connects, trains, and leaves.
func run(ctx context.Context) error {
	job, err := readTask(os.Getenv("GEMPS_CONFORMANCE"), *file)
	if err != nil {
		return err
	}
	connection, err := connect()
	if err != nil {
		return err
	}
	t := trainer{client: newClient(connection, *name, job)}
	if err := t.train(ctx); ctx.Err() != nil {
		t.leave("interrupted")
		return ctx.Err()
	} else if err != nil && err != errFinished {
		t.leave("failed")
		return err
	}
	t.leave("finished")
	say("the run is finished: %d commits", t.sequence)
	if t.held != nil {
		job.report(t.held.parameters)
	}
	return nil
}

type trainer struct {
	*client
	random   *rand.Rand
	failures failures
	toldAt   time.Time
}

// train follows the one rule: after any failure wait, begin again, and continue with a new gradient.
func (t *trainer) train(ctx context.Context) error {
	for err := t.session(ctx); err != nil && ctx.Err() == nil; err = t.session(ctx) {
		wait, end := t.failures.next(err)
		if end != nil {
			return end
		}
		say("joining again in %v: %v", wait.Round(time.Millisecond), err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	return nil
}

// session trains until the run is finished or a call fails, which ends its Commit stream.
func (t *trainer) session(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := t.begin(ctx); err != nil {
		return err
	}
	if t.random == nil {
		say("joined as rank %d", t.joined.Rank)
		t.random = rand.New(rand.NewSource(int64(t.joined.Settings.GetSeed())<<20 + int64(t.joined.Rank)))
	}
	for t.run != pb.RunState_RUN_STATE_FINISHED {
		gradient, loss, samples := t.job.step(t.held.parameters, t.random)
		if err := t.commit(state{gradient, t.held.buffers}, loss, samples); err != nil {
			return err
		}
		t.failures = failures{}
		if time.Since(t.toldAt) >= *interval {
			t.toldAt = time.Now()
			say("step %d, loss %.4f, eta %g", t.sequence, loss, t.eta)
		}
	}
	t.commits.CloseSend()
	t.commits.Recv() // the stream's end
	return nil
}

func say(format string, values ...interface{}) { fmt.Printf(*name+": "+format+"\n", values...) }

func connect() (*grpc.ClientConn, error) {
	pings := keepalive.ClientParameters{Time: time.Minute, Timeout: 20 * time.Second, PermitWithoutStream: true}
	options := []grpc.DialOption{grpc.WithKeepaliveParams(pings), grpc.WithBackoffMaxDelay(2 * time.Second)}
	if *folder == "" {
		return grpc.Dial(*server, append(options, grpc.WithInsecure())...)
	}
	authority, err := os.ReadFile(filepath.Join(*folder, "ca.crt"))
	if err != nil {
		return nil, &ending{refused, "--credentials: " + err.Error()}
	}
	settings := &tls.Config{RootCAs: x509.NewCertPool()}
	settings.RootCAs.AppendCertsFromPEM(authority)
	own, err := tls.LoadX509KeyPair(filepath.Join(*folder, "client.crt"), filepath.Join(*folder, "client.key"))
	if err == nil { // else the server asks for none
		settings.Certificates = []tls.Certificate{own}
	}
	options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(settings)))
	if text, err := os.ReadFile(filepath.Join(*folder, "token")); err == nil {
		token := &oauth2.Token{AccessToken: strings.TrimSpace(string(text))}
		options = append(options, grpc.WithPerRPCCredentials(oauth.NewOauthAccess(token)))
	}
	return grpc.Dial(*server, options...)
}

func environment(variable, otherwise string) string {
	if value := os.Getenv(variable); value != "" {
		return value
	}
	return otherwise
}
