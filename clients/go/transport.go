package leasehold

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold/leasehold/clients/go/internal/clock"
)

// Sends a request, and checks that the answer belongs to it.
//
//  1. Every request carries an id. Renewals and releases use connections of their own, so that no wait delays them.
//  2. An answer must have the headers of a leasehold server, the id of its request, and the store of the first answer. Its
//     body is bounded.
//  3. If anything is wrong, the connection is not used again: the right answer may still come, and would be taken for that
//     of the next request.
//  4. After an answer of another store no grant is accepted for a while: another client of the same address may hold the
//     same lease on that store.

const (
	// The largest body of an answer: a page of a thousand resources with long notes.
	answerMax = 64 << 20
	// Less than the minute after which the server closes an idle connection, so that no request meets a closed one.
	idleMax = 30 * time.Second
	// How long a connection may take, with TLS.
	connectMax = 5 * time.Second
	// How long no grant is accepted after an answer of another store.
	twoStoresFor = time.Minute
	requestMax   = 10 * time.Second
)

// transport is the connections to one server, or to several behind one address.
type transport struct {
	base string
	// For messages.
	server string
	// Behind a function, so that no %+v of a client prints a token.
	token    func(context.Context) (string, error)
	claims   *http.Client
	leases   *http.Client
	idPrefix string
	// Aligned by its type, also on 32-bit machines.
	idNext atomic.Uint64

	mu    sync.Mutex
	store string
	// When another store has answered last.
	anotherStoreAt time.Duration
	hasTwoStores   bool
}

func newHTTPClient(config *tls.Config) *http.Client {
	if config != nil {
		config = config.Clone()
	}
	return &http.Client{
		// A redirect is no answer of ours.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: connectMax, KeepAlive: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout: connectMax,
			TLSClientConfig:     config,
			IdleConnTimeout:     idleMax,
			MaxIdleConnsPerHost: 8,
			// No HTTP/2: all requests would share one connection, and after it died each would wait for its own timeout.
			// With HTTP/1.1 a request that gets no answer takes its connection with it.
			TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
		},
	}
}

// call is a request.
type call struct {
	method string
	path   string
	query  url.Values
	body   interface{}
	// Renewals and releases.
	isLease bool
	atMost  time.Duration
}

// answer is an answer of our server, on our store, to our request.
type answer struct {
	status int
	body   []byte
	pool   *http.Client
}

// dropConnections closes the connection of an answer that does not fit its request: the next answer on it may not fit either.
// net/http does not say which connection carried the answer, so all idle ones of this pool are closed.
func (a *answer) dropConnections() { a.pool.CloseIdleConnections() }

// decode reads a body.
func (a *answer) decode(into interface{}) error {
	if err := json.Unmarshal(a.body, into); err != nil {
		a.dropConnections()
		return unknown("the server's answer cannot be read", err)
	}
	return nil
}

func unknown(message string, cause error) error {
	return &UnavailableError{Effect: EffectUnknown, message: message, cause: cause}
}

// send sends a request. The error has its effect; if the context has ended, the caller says so instead.
func (t *transport) send(ctx context.Context, call call) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, call.atMost)
	defer cancel()
	var wasConnected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { wasConnected.Store(true) },
	})
	id := fmt.Sprintf("%s%08x", t.idPrefix, t.idNext.Add(1))
	request, err := t.request(ctx, call, id)
	if err != nil {
		return nil, err
	}
	pool := t.claims
	if call.isLease {
		pool = t.leases
	}
	response, err := pool.Do(request)
	if err != nil {
		return nil, t.failed(err, wasConnected.Load())
	}
	// Closing a body that was not read to its end closes the connection.
	defer response.Body.Close()
	if err := t.checkHeaders(response, id); err != nil {
		pool.CloseIdleConnections()
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, answerMax+1))
	if err != nil {
		return nil, unknown("the answer of "+t.server+" broke off", plain(err))
	}
	if len(body) > answerMax {
		return nil, unknown("the answer of "+t.server+" is too large", nil)
	}
	return &answer{response.StatusCode, body, pool}, nil
}

func (t *transport) request(ctx context.Context, call call, id string) (*http.Request, error) {
	var body io.Reader
	if call.body != nil {
		encoded, err := json.Marshal(call.body)
		if err != nil {
			return nil, &InvalidError{Kind: "invalid", Message: "the request cannot be written: " + err.Error()}
		}
		body = bytes.NewReader(encoded)
	}
	target := t.base + call.path
	if len(call.query) > 0 {
		target += "?" + call.query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, call.method, target, body)
	if err != nil {
		return nil, &InvalidError{Kind: "invalid", Message: "the request cannot be written: " + err.Error()}
	}
	request.Header.Set("Leasehold-Request", id)
	request.Header.Set("User-Agent", "leasehold-go/"+Version)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	token, err := t.token(ctx)
	if err != nil {
		return nil, &UnavailableError{Effect: EffectNone, message: "there is no token to send", cause: err}
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return request, nil
}

// failed is the error of a request without an answer. Without a connection nothing was written.
func (t *transport) failed(err error, wasConnected bool) error {
	err = plain(err)
	if why := certificateError(err); why != nil {
		return &DeniedError{Message: t.server + " cannot be trusted: " + why.Error()}
	}
	if !wasConnected {
		return &UnavailableError{Effect: EffectNone, message: "cannot connect to " + t.server, cause: err}
	}
	return unknown("no answer of "+t.server, err)
}

// plain is the error without the method and the address, which has names of resources in its query.
func plain(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

func certificateError(err error) error {
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &authority):
		return authority
	case errors.As(err, &host):
		return host
	case errors.As(err, &invalid):
		return invalid
	}
	return nil
}

func (t *transport) checkHeaders(response *http.Response, id string) error {
	store := response.Header.Get("Leasehold-Store")
	if !strings.HasPrefix(response.Header.Get("Leasehold-Api"), "1.") || store == "" {
		return unknown(fmt.Sprintf("%s answered with status %d, and not as a leasehold server does: check the address, and what "+
			"stands between this host and the server", t.server, response.StatusCode), nil)
	}
	if response.Header.Get("Leasehold-Request") != id {
		return unknown(t.server+" answered another request", nil)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.store == "" {
		t.store = store
	}
	if t.store == store {
		return nil
	}
	t.anotherStoreAt, t.hasTwoStores = clock.Now(), true
	return unknown(fmt.Sprintf("%s now serves another store (%.20q, before %.20q), so its answer says nothing about our leases: all "+
		"servers at one address must have the same store", t.server, store, t.store), nil)
}

// checkOneStore fails if two stores have answered at this address within the last minute.
func (t *transport) checkOneStore() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hasTwoStores && clock.Now() < t.anotherStoreAt+twoStoresFor {
		return &UnavailableError{Effect: EffectNone, message: fmt.Sprintf("%s has answered for another store within the last %v, so "+
			"no lease is taken there: all servers at one address must have the same store", t.server, twoStoresFor)}
	}
	return nil
}
