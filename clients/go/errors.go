package leasehold

import (
	"errors"
	"fmt"
	"time"
)

// What can go wrong, for [errors.Is]. [errors.As] finds the details: [BusyError], [LostError], [UnavailableError],
// [DeniedError], [InvalidError].
//
// A caller that cancels gets an error for which errors.Is(err, context.Canceled) is true, or context.DeadlineExceeded.
var (
	// ErrBusy: others hold the lease.
	ErrBusy = errors.New("leasehold: others hold the lease")
	// ErrTimedOut: others hold the lease, and the time to wait is over. Such an error is ErrBusy, too.
	ErrTimedOut = errors.New("leasehold: the time to wait for the lease is over")
	// ErrLost: the lease has ended, so the work must stop.
	ErrLost = errors.New("leasehold: the lease is lost")
	// ErrReleased is the cause of the context of a lease that its holder has released.
	ErrReleased = errors.New("leasehold: the lease is released")
	// ErrUnavailable: no answer, the server cannot carry the request out now, or the answer does not fit the request.
	ErrUnavailable = errors.New("leasehold: no answer")
	// ErrDenied: there is no valid token, or it does not allow this.
	ErrDenied = errors.New("leasehold: denied")
	// ErrInvalid: the request is wrong, and asking again does not help.
	ErrInvalid = errors.New("leasehold: invalid request")
)

// A BusyError says who holds a lease that could not be had.
type BusyError struct {
	// Resource that was asked for.
	Resource string
	// Holders are some of its holders.
	Holders []Holder
	// Foreign is the lock of another program that holds it, or nil.
	Foreign *ForeignLock
	// RetryAfter is how long to wait at least before asking again; add some at random.
	RetryAfter time.Duration
	// Paused by an operator: nobody is granted the lease.
	Paused bool
	// TimedOut after a wait: errors.Is(err, ErrTimedOut).
	TimedOut bool
}

func (e *BusyError) Error() string {
	text := "leasehold: " + e.Resource + " is held"
	if len(e.Holders) > 0 {
		text += " by " + e.Holders[0].String()
	} else if e.Foreign != nil {
		text += " by " + e.Foreign.String()
	}
	if len(e.Holders) > 1 {
		text += fmt.Sprintf(" and %d more", len(e.Holders)-1)
	}
	if e.Paused {
		text = "leasehold: an operator has paused " + e.Resource
	}
	if e.TimedOut {
		text += ", and the time to wait is over"
	}
	return text
}

// Is makes errors.Is(err, ErrBusy) work, and ErrTimedOut after a wait.
func (e *BusyError) Is(target error) bool {
	return target == ErrBusy || e.TimedOut && target == ErrTimedOut
}

// Why a lease has ended.
type Why string

const (
	// Expired by our own clock: the lease was not renewed in time.
	Expired Why = "expired"
	// WallClock: the calendar clock says that it is over, and the other clock does not. The machine may have slept.
	WallClock Why = "wall_clock"
	// NotThere: the server knows no such lease.
	NotThere Why = "not_there"
	// Evicted by an operator.
	Evicted Why = "evicted"
	// Buried: the claim was cancelled.
	Buried Why = "buried"
	// Released by its holder.
	Released Why = "released"
)

// A LostError says that a lease has ended. It is the cause of the lease's context: see [Cause].
type LostError struct {
	Resource string
	Why      Why
}

func (e *LostError) Error() string {
	return "leasehold: the lease of " + e.Resource + " has ended: " + e.reason()
}

func (e *LostError) reason() string {
	reasons := map[Why]string{
		Expired:   "it was not renewed in time",
		WallClock: "by the calendar clock it is over",
		NotThere:  "the server does not know it any more",
		Evicted:   "an operator evicted it",
		Buried:    "its claim was cancelled",
		Released:  "it was released",
	}
	reason, known := reasons[e.Why]
	if !known {
		reason = string(e.Why)
	}
	return reason
}

// Is makes errors.Is(err, ErrLost) work, and ErrReleased for a lease that was released.
func (e *LostError) Is(target error) bool {
	return target == ErrLost || e.Why == Released && target == ErrReleased
}

// Effect says whether a request that failed may have changed something at the server.
type Effect string

const (
	// EffectNone: nothing was changed.
	EffectNone Effect = "none"
	// EffectUnknown: the request may have been carried out, or an earlier one of the same claim.
	EffectUnknown Effect = "unknown"
)

// An UnavailableError says that there was no answer, that the server cannot carry the request out now, or that the answer does not
// fit the request.
type UnavailableError struct {
	// Effect of the request.
	Effect Effect
	// Kind of the server's refusal, such as "draining" or "throttled"; empty if there was none.
	Kind string
	// RetryAfter is how long to wait before asking again, if the server said so.
	RetryAfter time.Duration
	message    string
	cause      error
}

func (e *UnavailableError) Error() string {
	text := "leasehold: " + e.message
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	if e.Effect == EffectUnknown {
		text += " (the request may have been carried out)"
	}
	return text
}

// Is makes errors.Is(err, ErrUnavailable) work.
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }

// Unwrap gives the error of the connection, if there is one.
func (e *UnavailableError) Unwrap() error { return e.cause }

// A DeniedError says that there is no valid token, that it does not allow this, or that the server's certificate cannot be
// trusted.
type DeniedError struct{ Message string }

func (e *DeniedError) Error() string { return "leasehold: " + e.Message }

// Is makes errors.Is(err, ErrDenied) work.
func (e *DeniedError) Is(target error) bool { return target == ErrDenied }

// An InvalidError says that the request is wrong. Asking again does not help.
type InvalidError struct {
	// Kind of the refusal, such as "invalid", "mismatch" or "limit".
	Kind    string
	Message string
	// Capacity that others use, if they use another one than the request (Kind "mismatch").
	Capacity uint32
}

func (e *InvalidError) Error() string { return "leasehold: " + e.Message }

// Is makes errors.Is(err, ErrInvalid) work.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// A HolderChangedError says that the grant that an order names is gone.
type HolderChangedError struct {
	Resource string
	// Token of the newest grant, or 0 if the server names none.
	Token int64
}

func (e *HolderChangedError) Error() string {
	text := "leasehold: the order names a grant of " + e.Resource + " that is gone"
	if e.Token == 0 {
		return text + ", and the server names no newer one"
	}
	return fmt.Sprintf("%s; the newest one is %d", text, e.Token)
}

// withCause is an error and a second one behind it, both for errors.Is and errors.As. Errors with several causes need
// Go 1.20.
type withCause struct {
	err   error
	cause error
	text  string
}

func (e *withCause) Error() string              { return e.text }
func (e *withCause) Unwrap() error              { return e.err }
func (e *withCause) Is(target error) bool       { return errors.Is(e.cause, target) }
func (e *withCause) As(target interface{}) bool { return errors.As(e.cause, target) }
