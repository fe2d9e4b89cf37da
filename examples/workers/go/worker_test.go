package main

import (
	"errors"
	"io"
	"math"

	"reflect"
	"testing"
	"time"

	"github.com/golang/protobuf/proto"
	"github.com/golang/protobuf/ptypes"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestCRC32CIsCastagnolis(t *testing.T) {
	if got := footer([]byte("123456789")).Crc32C; got != 0xE3069283 {
		t.Errorf("%08X", got)
	}
}

func TestWhatIsEncodedIsDecoded(t *testing.T) {
	l := layout{
		{Name: "p", Shape: []uint64{2}, ElementType: "float32", Kind: "parameter"},
		{Name: "b", Shape: []uint64{}, ElementType: "int64", Kind: "buffer"},
		{Name: "f", Shape: []uint64{9}, ElementType: "float32", Kind: "frozen"},
	}
	sent := state{[]float32{1.5, -2}, []byte{1, 2, 3, 4, 5, 6, 7, 8}}
	got, err := l.decode(sent.encode())
	if err != nil || !reflect.DeepEqual(got, sent) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := l.decode(sent.encode()[1:]); err == nil {
		t.Error("a byte too few was taken")
	}
}

func TestTheGradientIsThatOfTheLoss(t *testing.T) {
	p := &perceptron{Hidden: []int{3}, Features: 4, Classes: 2, Maximum: 16}
	p.Layout = layout{{Shape: []uint64{23}, Kind: "parameter"}}
	input, label := []float32{3, 0, 16, 7}, 1
	theta := p.first(1).parameters
	gradient := make([]float32, len(theta))
	p.backward(theta, gradient, input, label)
	for i := range theta {
		at, step := theta[i], float32(0.01)
		theta[i] = at + step
		above := p.backward(theta, make([]float32, len(theta)), input, label)
		theta[i] = at - step
		below := p.backward(theta, make([]float32, len(theta)), input, label)
		theta[i] = at
		want := (above - below) / float64(2*step) / batch
		if math.Abs(want-float64(gradient[i])) > 1e-4 {
			t.Errorf("element %d: %g, and the loss says %g", i, gradient[i], want)
		}
	}
}

// refuse makes the error of a call that the server refused.
func refuse(code codes.Code, reason string, final bool, retry time.Duration) error {
	details := []proto.Message{&errdetails.ErrorInfo{Domain: "gemps", Reason: reason, Metadata: map[string]string{}}}
	if final {
		details[0].(*errdetails.ErrorInfo).Metadata["final"] = "true"
	}
	if retry > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: ptypes.DurationProto(retry)})
	}
	refused, err := status.New(code, "no").WithDetails(details...)
	if err != nil {
		panic(err)
	}
	return refused.Err()
}

func TestWhatFollowsFromAFailure(t *testing.T) {
	bug := errors.New("a bug")
	for _, one := range []struct {
		name       string
		err        error
		least      time.Duration // to wait
		most       time.Duration
		exit       int // 0: the worker goes on
		isFinished bool
	}{
		{name: "end of the stream", err: io.EOF, least: 50 * time.Millisecond, most: 100 * time.Millisecond},
		{name: "damage", err: errDamaged, least: 50 * time.Millisecond, most: 100 * time.Millisecond},
		{name: "network", err: status.Error(codes.Unavailable, ""), least: 50 * time.Millisecond, most: 100 * time.Millisecond},
		{name: "no gemps server", err: status.Error(codes.Unimplemented, ""), exit: failed},
		{name: "bug", err: bug, exit: failed},
		{name: "final", err: refuse(codes.FailedPrecondition, "FEATURE", true, 0), exit: refused},
		{name: "finished", err: refuse(codes.FailedPrecondition, "RUN_FINISHED", false, 0), isFinished: true},
		{name: "retry", err: refuse(codes.Aborted, "STALLED", false, 3*time.Second), least: 3 * time.Second, most: 3300 * time.Millisecond},
		{name: "recoverable", err: refuse(codes.FailedPrecondition, "STALE_BASE", false, 0), most: 100 * time.Millisecond},
		{name: "own bug", err: refuse(codes.InvalidArgument, "MALFORMED", false, 0), exit: failed},
		{name: "unknown", err: refuse(codes.Aborted, "NEW_ONE", false, 0), exit: failed},
		{name: "unknown, with a delay", err: refuse(codes.Aborted, "NEW_ONE", false, time.Second), least: time.Second, most: 1100 * time.Millisecond},
	} {
		wait, end := (&failures{}).next(one.err)
		var ends *ending
		switch {
		case one.isFinished && end != errFinished:
			t.Errorf("%s: %v", one.name, end)
		case one.exit == refused && !(errors.As(end, &ends) && ends.exit == refused):
			t.Errorf("%s: %v", one.name, end)
		case (one.exit != 0 || one.isFinished) != (end != nil):
			t.Errorf("%s: %v", one.name, end)
		case end == nil && (wait < one.least || wait > one.most):
			t.Errorf("%s: it waits %v", one.name, wait)
		}
	}
}

func TestWaitsGrowToTwoSeconds(t *testing.T) {
	f := &failures{}
	for i := 0; i < 20; i++ {
		if wait, _ := f.next(io.EOF); wait > 2*time.Second || i > 5 && wait < time.Second {
			t.Errorf("failure %d: %v", i, wait)
		}
	}
	f.all = mostFailures
	if _, end := f.next(io.EOF); end == nil {
		t.Error("it never gives up")
	}
}

func TestSixWrongChecksumsInARowAreABug(t *testing.T) {
	f := &failures{}
	for i := 1; i <= 6; i++ {
		if _, end := f.next(refuse(codes.DataLoss, "CHECKSUM", false, 0)); (end != nil) != (i == 6) {
			t.Errorf("refusal %d: %v", i, end)
		}
	}
}
