package leasehold

import (
	"encoding/base64"
	"strconv"
	"time"
	"unicode/utf8"
)

// What is sent, and what is answered: the fields of the HTTP API that this client uses.

type noteBody struct {
	Note       *string `json:"note,omitempty"`
	NoteBase64 *string `json:"note_base64,omitempty"`
}

func noteBodyOf(note *string) noteBody {
	if note == nil || utf8.ValidString(*note) {
		return noteBody{Note: note}
	}
	encoded := base64.StdEncoding.EncodeToString([]byte(*note))
	return noteBody{NoteBase64: &encoded}
}

func (n noteBody) read() string {
	if n.Note != nil {
		return *n.Note
	}
	if n.NoteBase64 != nil {
		if decoded, err := base64.StdEncoding.DecodeString(*n.NoteBase64); err == nil {
			return string(decoded)
		}
	}
	return ""
}

type claimBody struct {
	Resource string `json:"resource"`
	Owner    string `json:"owner"`
	TTL      int64  `json:"ttl_ms"`
	Wait     int64  `json:"wait_ms,omitempty"`
	// "queue" keeps the place of a claim until it is asked again.
	WhenBlocked string      `json:"when_blocked,omitempty"`
	Share       interface{} `json:"share,omitempty"`
	Level       Level       `json:"level,omitempty"`
	Host        string      `json:"host,omitempty"`
	PID         int         `json:"pid,omitempty"`
	Label       string      `json:"label,omitempty"`
	Process     string      `json:"process,omitempty"`
	noteBody
}

type shareParts struct {
	Weight   uint32 `json:"weight"`
	Capacity uint32 `json:"capacity"`
}

type renewBody struct {
	Resource string `json:"resource"`
	Owner    string `json:"owner"`
	TTL      int64  `json:"ttl_ms"`
	noteBody
}

type releaseBody struct {
	Resource string `json:"resource"`
	Owner    string `json:"owner"`
	Bury     int64  `json:"bury_ms,omitempty"`
}

type leasesBody struct {
	Leases  interface{} `json:"leases"`
	Timeout int64       `json:"timeout_ms"`
}

type leasesReply struct {
	Leases []reply `json:"leases"`
}

// reply is any answer about one claim: a verdict, or a problem document. A field that is missing has the value that grants
// least.
type reply struct {
	Status      int          `json:"status"`
	Verdict     string       `json:"verdict"`
	Resource    string       `json:"resource"`
	Key         string       `json:"key"`
	OwnerHash   string       `json:"owner_hash"`
	Token       tokenText    `json:"token"`
	Number      tokenText    `json:"number"`
	Grant       tokenText    `json:"grant"`
	Pass        string       `json:"pass"`
	TTLMs       uint64       `json:"ttl_ms"`
	RemainingMs uint64       `json:"remaining_ms"`
	WaitedMs    uint64       `json:"waited_ms"`
	Asked       *finishBody  `json:"asked"`
	Evicting    bool         `json:"evicting"`
	Holders     []holderBody `json:"holders"`
	Foreign     *foreignBody `json:"foreign"`
	Paused      bool         `json:"paused"`
	RetryMs     uint64       `json:"retry_after_ms"`

	Kind     string `json:"kind"`
	Effect   string `json:"effect"`
	Title    string `json:"title"`
	Detail   string `json:"detail"`
	Hint     string `json:"hint"`
	Why      string `json:"why"`
	Capacity uint32 `json:"capacity"`
}

// tokenText is a token in decimal digits: programs in other languages cannot read such numbers in JSON.
type tokenText string

// number is 0 for what is no token.
func (t tokenText) number() int64 {
	number, err := strconv.ParseInt(string(t), 10, 64)
	if err != nil || number < 0 {
		return 0
	}
	return number
}

type finishBody struct {
	WithinMs uint64 `json:"within_ms"`
	By       string `json:"by"`
	Why      string `json:"why"`
}

type processBody struct {
	Host    string `json:"host"`
	PID     uint32 `json:"pid"`
	Label   string `json:"label"`
	Subject string `json:"subject"`
}

type holderBody struct {
	Holder      processBody `json:"holder"`
	Token       tokenText   `json:"token"`
	Weight      uint32      `json:"weight"`
	HeldMs      uint64      `json:"held_for_ms"`
	RemainingMs uint64      `json:"remaining_ms"`
	Evicting    bool        `json:"evicting"`
	Kept        bool        `json:"kept"`
	noteBody
}

func (h holderBody) read() Holder {
	return Holder{
		Process:   Process(h.Holder),
		Token:     h.Token.number(),
		Weight:    h.Weight,
		HeldFor:   fromMillis(h.HeldMs),
		Remaining: fromMillis(h.RemainingMs),
		Note:      h.noteBody.read(),
		Evicting:  h.Evicting,
		Kept:      h.Kept,
	}
}

func readHolders(bodies []holderBody) []Holder {
	holders := make([]Holder, 0, len(bodies))
	for _, body := range bodies {
		holders = append(holders, body.read())
	}
	return holders
}

type foreignBody struct {
	Key         string  `json:"key"`
	Form        string  `json:"form"`
	ValueHash   string  `json:"value_hash"`
	RemainingMs *uint64 `json:"remaining_ms"`
}

func (f *foreignBody) read() *ForeignLock {
	if f == nil {
		return nil
	}
	lock := &ForeignLock{Key: f.Key, Form: f.Form, ValueHash: f.ValueHash, NeverExpires: f.RemainingMs == nil}
	if f.RemainingMs != nil {
		lock.Remaining = fromMillis(*f.RemainingMs)
	}
	return lock
}

// given is what a grant gives to a claim that asked for a ttl and was sent so long ago.
//
// The lease is never longer than the one that was asked for, and the server cannot have waited longer than we have.
func (r *reply) given(asked, elapsed time.Duration) given {
	ttl := shorter(fromMillis(r.TTLMs), asked)
	return given{
		ttl:       ttl,
		remaining: shorter(fromMillis(r.RemainingMs), asked),
		waited:    shorter(fromMillis(r.WaitedMs), elapsed),
	}
}
