package leasehold

import (
	"fmt"
	"strings"
	"unicode"
)

// check looks whether an answer is about this claim. One that names another claim, or none, is no verdict; but a refusal of
// a whole request names none.
func (c *claim) check(r *reply) error {
	isNamed := r.Key == c.key && r.OwnerHash == c.ownerHash
	isUnnamed := r.Key == "" && r.OwnerHash == ""
	isWholeRequest := r.Verdict == "" && r.Kind != "lost" && r.Kind != "contended"
	// A server may have more to say of a resource than of a claim: "invalid" names the resource alone.
	isResource := r.OwnerHash == "" && r.Key == c.key
	if isNamed || r.Status >= 400 && isWholeRequest && (isUnnamed || isResource) {
		return nil
	}
	return unknown("the server's answer names another claim than that on "+c.resource, nil)
}

// errorOf is the error of a problem document. resource may be empty.
func errorOf(r *reply, resource string) error {
	switch r.Kind {
	case "contended":
		return &BusyError{
			Resource:   resource,
			Holders:    readHolders(r.Holders),
			Foreign:    r.Foreign.read(),
			RetryAfter: fromMillis(r.RetryMs),
			Paused:     r.Paused,
		}
	case "lost":
		return &LostError{Resource: resource, Why: whyOf(r)}
	case "unauthenticated", "denied":
		return &DeniedError{Message: r.text()}
	case "not_that_one":
		return &HolderChangedError{Resource: resource, Token: r.Token.number()}
	case "mismatch":
		message := fmt.Sprintf("others use %s with a capacity of %d", resource, r.Capacity)
		return &InvalidError{Kind: r.Kind, Message: message, Capacity: r.Capacity}
	case "malformed", "not_found", "method_not_allowed", "too_large", "not_json", "wrong_host", "invalid", "unsupported",
		"guarantee_too_weak", "limit", "token_required", "stale_token":
		return &InvalidError{Kind: r.Kind, Message: r.text()}
	}
	effect := EffectUnknown
	if r.Effect == string(EffectNone) {
		effect = EffectNone
	}
	return &UnavailableError{Effect: effect, Kind: r.Kind, RetryAfter: fromMillis(r.RetryMs), message: r.text()}
}

func whyOf(r *reply) Why {
	if r.Why == "" {
		return NotThere
	}
	return Why(r.Why)
}

// text is what a problem says to people.
func (r *reply) text() string {
	text := r.Detail
	if text == "" {
		text = r.Title
	}
	if text == "" {
		text = "the server refused the request: " + r.Kind
	}
	if r.Hint != "" {
		text += " (" + r.Hint + ")"
	}
	return printable(text)
}

const printableMax = 1000

// printable is a text of somebody else that may stand in one line of a log.
func printable(text string) string {
	if len(text) > printableMax {
		text = text[:printableMax] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}

// read reads the body of an answer that is no list, or the error of its refusal.
func (a *answer) read(into interface{}, resource string) error {
	if a.status >= 200 && a.status < 300 {
		return a.decode(into)
	}
	var refusal reply
	if a.status < 400 {
		a.dropConnections()
		return unknown(fmt.Sprintf("the server answered with status %d", a.status), nil)
	}
	if err := a.decode(&refusal); err != nil {
		return err
	}
	return errorOf(&refusal, resource)
}
