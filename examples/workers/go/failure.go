package main

import (
	"errors"
	"io"
	"math"
	"math/rand"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const mostFailures = 200 // in a row, which is about five minutes

var errFinished = errors.New("the run is finished")

// ending is an error that ends the worker with this exit status.
type ending struct {
	exit int
	text string
}

func (e *ending) Error() string { return e.text }

// recoverable has the reasons that errors.proto marks with *.
var recoverable = map[string]bool{
	"BAD_VALUE": true, "CHECKSUM": true, "UNKNOWN_SESSION": true, "EXPIRED_SESSION": true, "UNKNOWN_INCARNATION": true,
	"STALE_BASE": true, "SEQUENCE_GAP": true, "NOT_INITIALIZED": true, "NEWER_CALL": true, "STARTING": true,
	"DRAINING": true,
}

// transient has the codes of statuses that come from gRPC or the network.
var transient = map[codes.Code]bool{
	codes.Unavailable: true, codes.Canceled: true, codes.DeadlineExceeded: true, codes.Internal: true,
}

// failures counts those without a success between them.
type failures struct{ all, checksums int }

// next returns how long to wait before the worker begins again, or an error that ends it, by the table in errors.proto.
func (f *failures) next(err error) (time.Duration, error) {
	wait := time.Duration(math.Min(1e8*math.Pow(2, float64(f.all)), 2e9) * (0.5 + rand.Float64()/2)) // nanoseconds
	if f.all++; f.all > mostFailures {
		return 0, err
	}
	if err == io.EOF || err == errDamaged { // EOF: the stream ended within a transfer
		return wait, nil
	}
	answer := status.Convert(err)
	info, retry := details(answer)
	if info.GetReason() == "CHECKSUM" {
		f.checksums++
	}
	switch {
	case info == nil && transient[answer.Code()]:
		return wait, nil
	case info.GetMetadata()["final"] == "true":
		return 0, &ending{refused, info.Reason + ": " + answer.Message()}
	case info.GetReason() == "RUN_FINISHED":
		return 0, errFinished
	case retry != nil:
		return time.Duration((1 + rand.Float64()/10) * float64(retry.RetryDelay.AsDuration())), nil
	case recoverable[info.GetReason()] && f.checksums <= 5:
		return wait, nil
	}
	return 0, err
}

// details returns what the server attached to a status, and nil for what it did not.
func details(answer *status.Status) (info *errdetails.ErrorInfo, retry *errdetails.RetryInfo) {
	for _, detail := range answer.Details() {
		switch one := detail.(type) {
		case *errdetails.ErrorInfo:
			if one.Domain == "gemps" {
				info = one
			}
		case *errdetails.RetryInfo:
			retry = one
		}
	}
	return info, retry
}
