package leasehold

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/url"
	"os"
	"strings"
)

// Version of this client.
const Version = "0.1.0"

// A Client acquires leases from a server: a program that runs `leasehold serve`. It is safe for any number of goroutines;
// most programs have one. It needs no closing: its one goroutine ends when no lease is held.
type Client struct {
	transport transport
	keeper    keeper
	config    config
	// This process, as others see it.
	host    string
	process string
}

type config struct {
	token          func(context.Context) (string, error)
	tls            *tls.Config
	label          string
	level          Level
	onReleaseError func(resource string, err error)
}

// A ClientOption is for [New].
type ClientOption func(*config)

// WithToken sends a token, as `leasehold token new` prints it, with each request. Without it: the password of the URL, or
// none.
func WithToken(token string) ClientOption {
	return WithTokenFunc(func(context.Context) (string, error) { return token, nil })
}

// WithTokenFunc asks for the token before each request, for example from a file that changes.
func WithTokenFunc(token func(context.Context) (string, error)) ClientOption {
	return func(c *config) { c.token = token }
}

// WithTLS sets the authorities to trust, and a certificate to show. Without it: those of the system, and none.
func WithTLS(tls *tls.Config) ClientOption { return func(c *config) { c.tls = tls } }

// WithLabel says what this program does, for people who look at who holds a lease. [Label] says it of one lease.
func WithLabel(label string) ClientOption { return func(c *config) { c.label = label } }

// A Level says how far a store can be trusted.
type Level string

// The levels, in order.
const (
	// BestEffort: a failover can grant twice.
	BestEffort Level = "best-effort"
	// Quorum: a majority of independent nodes.
	Quorum Level = "quorum"
	// Database: a transaction log on one durable node.
	Database Level = "database"
	// Consensus: a consensus protocol.
	Consensus Level = "consensus"
)

// WithLevel refuses a store that promises less than this. Without it every store will do.
func WithLevel(level Level) ClientOption { return func(c *config) { c.level = level } }

// OnReleaseError is told when a release at the end of [Client.Run] fails. The lease then ends by itself, within its ttl.
func OnReleaseError(report func(resource string, err error)) ClientOption {
	return func(c *config) { c.onReleaseError = report }
}

// New makes a client of the server at this address, such as http://localhost:7420. It asks the server nothing.
func New(address string, options ...ClientOption) (*Client, error) {
	base, password, err := readAddress(address)
	if err != nil {
		return nil, err
	}
	c := config{token: func(context.Context) (string, error) { return password, nil }}
	for _, option := range options {
		option(&c)
	}
	process, err := randomHex(8)
	if err != nil {
		return nil, err
	}
	idPrefix, err := randomHex(4)
	if err != nil {
		return nil, err
	}
	client := &Client{
		transport: transport{
			base:     strings.TrimSuffix(base.String(), "/"),
			server:   base.Scheme + "://" + base.Host,
			token:    c.token,
			claims:   newHTTPClient(c.tls),
			leases:   newHTTPClient(c.tls),
			idPrefix: idPrefix,
		},
		config:  c,
		process: process,
	}
	client.host, _ = os.Hostname() // for people: a host without a name is no reason to fail
	client.keeper.start(client)
	return client, nil
}

// readAddress reads the address of a server, and takes the token from it. No error has the address, which may have a token
// anywhere: only its scheme and host.
func readAddress(address string) (*url.URL, string, error) {
	base, err := url.Parse(address)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Hostname() == "" {
		return nil, "", invalidAddress("this is not a URL of a server")
	}
	server := base.Scheme + "://" + base.Host
	if base.RawQuery != "" || base.ForceQuery || base.Fragment != "" {
		return nil, "", invalidAddress(fmt.Sprintf("the address of %q has a query or a fragment", server))
	}
	password, hasPassword := base.User.Password()
	if base.User != nil && !hasPassword {
		message := fmt.Sprintf("the address of %q has a user name without a password: write a token as http://:TOKEN@HOST:PORT, "+
			"or use WithToken", server)
		return nil, "", &InvalidError{Kind: "invalid", Message: message}
	}
	base.User = nil
	return base, password, nil
}

func invalidAddress(why string) error {
	return &InvalidError{Kind: "invalid", Message: why + ": write http://HOST:PORT or https://HOST"}
}

// CloseIdleConnections closes the connections that no request uses. Leases that are held stay held.
func (c *Client) CloseIdleConnections() {
	c.transport.claims.CloseIdleConnections()
	c.transport.leases.CloseIdleConnections()
}

// String names the server.
func (c *Client) String() string { return "leasehold client of " + c.transport.server }

// GoString is String: %#v shows no secret.
func (c *Client) GoString() string { return c.String() }
