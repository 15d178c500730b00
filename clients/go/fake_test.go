package leasehold_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	leasehold "github.com/leasehold/leasehold/clients/go"
)

type object = map[string]interface{}

// asked is a request that a fake server got.
type asked struct {
	path string
	body object
	at   time.Time
}

// fake is a server that answers as it is told. Without more it grants everything, and keeps nothing.
type fake struct {
	t   *testing.T
	url string

	mu   sync.Mutex
	got  []asked
	more chan struct{}
	// Changes the answers to the requests of a path, if it is there.
	lies map[string]lie
}

// lie changes an answer: headers, status, body. An answer without a body has already been given.
type lie func(request asked, w http.ResponseWriter, status int, body object) (int, object)

const storeID = "8196fbb53aa84c16"

func newFake(t *testing.T) *fake {
	f := &fake{t: t, lies: map[string]lie{}, more: make(chan struct{}, 1)}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

func (f *fake) lie(path string, how lie) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lies[path] = how
}

func (f *fake) client(options ...leasehold.ClientOption) *leasehold.Client {
	client, err := leasehold.New(f.url, options...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(client.CloseIdleConnections)
	return client
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	encoded, _ := io.ReadAll(r.Body)
	request := asked{path: r.URL.Path, at: time.Now()}
	_ = json.Unmarshal(encoded, &request.body)
	f.mu.Lock()
	f.got = append(f.got, request)
	how := f.lies[request.path]
	f.mu.Unlock()
	select {
	case f.more <- struct{}{}:
	default:
	}
	w.Header().Set("Leasehold-Api", "1.0")
	w.Header().Set("Leasehold-Store", storeID)
	w.Header().Set("Leasehold-Request", r.Header.Get("Leasehold-Request"))
	status, body := http.StatusOK, truth(request)
	if how != nil {
		status, body = how(request, w, status, body)
	}
	if body != nil {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
}

// requests are those of a path, so far.
func (f *fake) requests(path string) []asked {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []asked
	for _, request := range f.got {
		if request.path == path {
			found = append(found, request)
		}
	}
	return found
}

// await waits for the nth request of a path.
func (f *fake) await(path string, nth int) asked {
	f.t.Helper()
	limit := time.After(30 * time.Second)
	for {
		if found := f.requests(path); len(found) >= nth {
			return found[nth-1]
		}
		select {
		case <-f.more:
		case <-limit:
			f.t.Fatalf("there was no request %d of %s", nth, path)
		}
	}
}

// awaitEnd waits for the end of the context of a lease.
func awaitEnd(t *testing.T, ctx context.Context) {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the lease did not end")
	}
}

// leases are the entries of a list.
func (a asked) leases() []object {
	var entries []object
	list, _ := a.body["leases"].([]interface{})
	for _, entry := range list {
		entries = append(entries, entry.(object))
	}
	return entries
}

func named(entry object) object {
	hash := sha256.Sum256([]byte(entry["owner"].(string)))
	return object{"resource": entry["resource"], "key": entry["resource"], "owner_hash": hex.EncodeToString(hash[:16])}
}

// truth is what a server that has everything for everybody answers.
func truth(request asked) object {
	switch request.path {
	case "/v1/acquire":
		answer := named(request.body)
		answer["verdict"], answer["token"] = "granted", "7"
		answer["pass"] = fmt.Sprintf("7 %v %v", answer["owner_hash"], answer["resource"])
		answer["ttl_ms"], answer["remaining_ms"], answer["waited_ms"] = request.body["ttl_ms"], request.body["ttl_ms"], 0
		return answer
	case "/v1/renew", "/v1/release":
		entries := []object{}
		for _, lease := range request.leases() {
			entry := named(lease)
			entry["status"], entry["verdict"] = 200, "released"
			if strings.HasSuffix(request.path, "renew") {
				entry["verdict"], entry["grant"] = "kept", "7"
				entry["ttl_ms"], entry["remaining_ms"] = lease["ttl_ms"], lease["ttl_ms"]
			}
			entries = append(entries, entry)
		}
		return object{"leases": entries}
	}
	return object{}
}

// with changes one field.
func with(field string, value interface{}) lie {
	return func(_ asked, _ http.ResponseWriter, status int, body object) (int, object) {
		body[field] = value
		return status, body
	}
}

// withEntry changes one field of each entry of a list.
func withEntry(fields object) lie {
	return func(_ asked, _ http.ResponseWriter, status int, body object) (int, object) {
		for _, entry := range body["leases"].([]object) {
			for field, value := range fields {
				entry[field] = value
			}
		}
		return status, body
	}
}

func header(name, value string) lie {
	return func(_ asked, w http.ResponseWriter, status int, body object) (int, object) {
		w.Header().Set(name, value)
		return status, body
	}
}

// problem refuses each request of a path.
func problem(status int, fields object) lie {
	return func(_ asked, _ http.ResponseWriter, _ int, _ object) (int, object) {
		fields["status"] = status
		return status, fields
	}
}

// hangUp ends the connection without an answer.
func hangUp(_ asked, w http.ResponseWriter, _ int, _ object) (int, object) {
	connection, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		connection.Close()
	}
	return 0, nil
}
