package leasehold_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	leasehold "github.com/leasehold/leasehold/clients/go"
	"github.com/leasehold/leasehold/clients/go/internal/child"
)

// server is the address of a real server, which these tests and the examples share.
var server string

func TestMain(m *testing.M) {
	os.Exit(withServer(m))
}

// withServer runs the tests beside `leasehold serve`: the program that LEASEHOLD_PROGRAM names, or that of this
// repository.
func withServer(m *testing.M) int {
	folder, err := storeFolder()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	url, stop, err := serve("sqlite:" + filepath.Join(folder, "leases.db"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "the tests need a server:", err)
		return 1
	}
	defer stop()
	server = url
	return m.Run()
}

// storeFolder is a folder in memory, if there is such a place: a busy disk delays commits by seconds.
func storeFolder() (string, error) {
	if folder, err := os.MkdirTemp("/dev/shm", "leasehold-go"); err == nil {
		return folder, nil
	}
	return os.MkdirTemp("", "leasehold-go")
}

func program() string {
	if named := os.Getenv("LEASEHOLD_PROGRAM"); named != "" {
		return named
	}
	return filepath.Join("..", "..", "target", "debug", "leasehold")
}

func serve(store string, options ...string) (string, func(), error) {
	args := append([]string{"--store", store, "--json", "serve", "--listen", "127.0.0.1:0"}, options...)
	command := exec.Command(program(), args...)
	command.Stderr = os.Stderr
	stdout, err := command.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	ended, err := child.Start(command)
	if err != nil {
		return "", nil, fmt.Errorf("%w (cargo build -p leasehold-cli builds it; LEASEHOLD_PROGRAM names it)", err)
	}
	stop := func() {
		_ = command.Process.Kill()
		<-ended
	}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	var said struct {
		Listening string `json:"listening"`
	}
	if err == nil {
		err = json.Unmarshal(line, &said)
	}
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("the server did not start: %w", err)
	}
	return said.Listening, stop, nil
}

func newClient(t *testing.T, options ...leasehold.ClientOption) *leasehold.Client {
	t.Helper()
	client, err := leasehold.New(server, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// The name of a resource of this test.
func mine(t *testing.T, id string) string {
	return "test/" + strings.ReplaceAll(t.Name(), "/", "-") + "-" + id
}

func acquire(t *testing.T, client *leasehold.Client, resource string, options ...leasehold.Option) (*leasehold.Lease, context.Context) {
	t.Helper()
	lease, ctx, err := client.TryAcquire(context.Background(), resource, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Release(context.Background()) })
	return lease, ctx
}

func TestOneHoldsAndTheNextWaits(t *testing.T) {
	client, name := newClient(t, leasehold.WithLabel("the test")), mine(t, "a")
	first, held := acquire(t, client, name, leasehold.Note("step 1"))
	_, _, err := client.TryAcquire(context.Background(), name)
	var busy *leasehold.BusyError
	if !errors.As(err, &busy) || errors.Is(err, leasehold.ErrTimedOut) {
		t.Fatalf("got %v", err)
	}
	holder := busy.Holders[0]
	if holder.Token != first.Token() || holder.Label != "the test" || int(holder.PID) != os.Getpid() || busy.RetryAfter <= 0 {
		t.Errorf("got %+v", busy)
	}
	_, _, err = client.Acquire(context.Background(), name, leasehold.Wait(100*time.Millisecond))
	if !errors.Is(err, leasehold.ErrTimedOut) {
		t.Errorf("got %v", err)
	}

	granted := make(chan *leasehold.Lease)
	go func() {
		lease, _, err := client.Acquire(context.Background(), name)
		if err != nil {
			t.Error(err)
		}
		granted <- lease
	}()
	awaitQueue(t, client, name, 1)
	if err := first.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	second := <-granted
	if !errors.Is(leasehold.Cause(held), leasehold.ErrReleased) {
		t.Errorf("got %v", leasehold.Cause(held))
	}
	if second.Token() <= first.Token() || !strings.HasPrefix(second.Pass(), fmt.Sprint(second.Token())+" ") {
		t.Errorf("got %v after %v", second.Pass(), first.Pass())
	}
	if err := second.Release(context.Background()); err != nil {
		t.Error(err)
	}
}

func awaitQueue(t *testing.T, client *leasehold.Client, name string, length int) {
	t.Helper()
	for limit := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		seen, err := client.Look(context.Background(), name)
		if err != nil || time.Now().After(limit) {
			t.Fatalf("%+v, %v", seen, err)
		}
		if seen.QueueLength == length {
			return
		}
	}
}

func TestACallerThatCancelsLeavesNoPlace(t *testing.T) {
	client, name := newClient(t), mine(t, "a")
	acquire(t, client, name)
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error)
	go func() {
		_, _, err := client.Acquire(ctx, name)
		failed <- err
	}()
	awaitQueue(t, client, name, 1)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	awaitQueue(t, client, name, 0)
}

func TestReadersAndSemaphores(t *testing.T) {
	client, document, pool := newClient(t), mine(t, "document"), mine(t, "pool")
	reader, _ := acquire(t, client, document, leasehold.Read())
	acquire(t, client, document, leasehold.Read())
	if reader.Token() != 0 || reader.Pass() != "" || reader.Number() == 0 {
		t.Errorf("a reader has no fencing token: %v %q", reader.Token(), reader.Pass())
	}
	if _, _, err := client.TryAcquire(context.Background(), document, leasehold.Write()); !errors.Is(err, leasehold.ErrBusy) {
		t.Errorf("got %v", err)
	}
	acquire(t, client, pool, leasehold.Semaphore(1, 2))
	acquire(t, client, pool, leasehold.Semaphore(1, 2))
	if _, _, err := client.TryAcquire(context.Background(), pool, leasehold.Semaphore(1, 2)); !errors.Is(err, leasehold.ErrBusy) {
		t.Errorf("got %v", err)
	}
	_, _, err := client.TryAcquire(context.Background(), pool, leasehold.Semaphore(1, 3))
	var invalid *leasehold.InvalidError
	if !errors.As(err, &invalid) || invalid.Capacity != 2 {
		t.Errorf("got %v", err)
	}
	for _, share := range []leasehold.Option{leasehold.Semaphore(3, 2), leasehold.Semaphore(0, 2), leasehold.TTL(0)} {
		if _, _, err := client.TryAcquire(context.Background(), pool, share); !errors.Is(err, leasehold.ErrInvalid) {
			t.Errorf("got %v", err)
		}
	}
}

func TestSeveralOrNone(t *testing.T) {
	client := newClient(t)
	names := []string{mine(t, "b"), mine(t, "a"), mine(t, "c")}
	held, _ := acquire(t, client, names[0])
	_, _, err := client.AcquireAll(context.Background(), names, leasehold.Wait(0))
	if !errors.Is(err, leasehold.ErrBusy) {
		t.Fatalf("got %v", err)
	}
	acquire(t, client, names[1]) // nothing is left of it
	if err := held.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	all, ctx, err := client.AcquireAll(context.Background(), []string{names[2], names[0]})
	if err != nil {
		t.Fatal(err)
	}
	if first := all.All()[0]; first.Resource() != names[0] || all.Check() != nil || ctx.Err() != nil {
		t.Errorf("got %v", all.All())
	}
	// If one ends, the context of all does.
	_ = all.All()[0].Release(context.Background())
	awaitEnd(t, ctx)
	if err := all.Check(); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("got %v", err)
	}
	if err := all.Release(context.Background()); err != nil {
		t.Error(err)
	}
	acquire(t, client, names[2])
	for _, wrong := range [][]string{nil, {"a/1", "a/1"}, {"a/1", "x"}} {
		if _, _, err := client.AcquireAll(context.Background(), wrong); !errors.Is(err, leasehold.ErrInvalid) {
			t.Errorf("%v: got %v", wrong, err)
		}
	}
}

func TestNotesAreBytes(t *testing.T) {
	client, name := newClient(t), mine(t, "a")
	lease, ctx := acquire(t, client, name, leasehold.Note("caf\xe9"))
	for _, note := range []string{"caf\xe9", "plain", ""} {
		if err := lease.SetNote(ctx, note); err != nil {
			t.Fatal(err)
		}
		seen, err := client.Look(context.Background(), name)
		if err != nil || seen.Holders[0].Note != note {
			t.Errorf("got %+v, %v", seen, err)
		}
	}
	if err := lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := lease.SetNote(context.Background(), "late"); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("got %v", err)
	}
}

func TestAStoreThatPromisesLessIsRefused(t *testing.T) {
	client := newClient(t, leasehold.WithLevel(leasehold.Consensus))
	_, _, err := client.TryAcquire(context.Background(), mine(t, "a"))
	var invalid *leasehold.InvalidError
	if !errors.As(err, &invalid) || invalid.Kind != "guarantee_too_weak" {
		t.Errorf("got %v", err)
	}
}

func TestOperators(t *testing.T) {
	t.Parallel()
	folder, err := storeFolder()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	tokens := filepath.Join(folder, "tokens.toml")
	newToken := func(name, role string) string {
		output, err := exec.Command(program(), "token", "--tokens", tokens, "new", name, "--role", role).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(output))
	}
	operator, app := newToken("ops", "operator"), newToken("app", "client")
	url, stop, err := serve("sqlite:"+filepath.Join(folder, "leases.db"), "--tokens", tokens)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	client, err := leasehold.New(strings.Replace(url, "http://", "http://:"+app+"@", 1))
	if err != nil {
		t.Fatal(err)
	}
	ops, err := leasehold.New(url, leasehold.WithToken(operator))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	lease, held := acquire(t, client, "job/1", leasehold.TTL(6*time.Second))
	acquire(t, client, "job/2")
	order := leasehold.Order{Resource: "job/1", Action: leasehold.Ask, Token: lease.Token(), Why: "an upgrade", Within: time.Minute}
	if err := client.Order(ctx, order); !errors.Is(err, leasehold.ErrDenied) {
		t.Errorf("got %v", err)
	}
	if err := ops.Order(ctx, order); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if asked, ok := lease.Asked(); ok {
			if asked.By != "ops" || asked.Why != "an upgrade" || asked.Within <= 0 {
				t.Errorf("got %+v", asked)
			}
			break
		}
		if time.Now().After(limit) {
			t.Fatal("nobody asked")
		}
	}
	resources, err := ops.List(ctx, "job/")
	if err != nil || len(resources) != 2 || resources[0].Name != "job/1" || resources[0].Holders[0].Subject != "app" {
		t.Errorf("got %+v, %v", resources, err)
	}
	overview, err := ops.Overview(ctx, leasehold.OverviewQuery{Text: "job/2", Sort: "hold", Limit: 1})
	if err != nil || overview.Held != 2 || overview.Matched != 1 || overview.Items[0].Name != "job/2" {
		t.Errorf("got %+v, %v", overview, err)
	}
	order.Action, order.Within, order.Token = leasehold.EvictNow, 0, lease.Token()+1
	var changed *leasehold.HolderChangedError
	if err := ops.Order(ctx, order); !errors.As(err, &changed) || changed.Token != lease.Token() {
		t.Errorf("got %v", err)
	}
	order.Token = lease.Token()
	if err := ops.Order(ctx, order); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, held)
	var lost *leasehold.LostError
	if !errors.As(leasehold.Cause(held), &lost) || lost.Why != leasehold.Evicted {
		t.Errorf("got %v", leasehold.Cause(held))
	}
}

func TestACertificateThatIsNotTrustedIsDenied(t *testing.T) {
	fake := &fake{t: t, lies: map[string]lie{}, more: make(chan struct{}, 1)}
	secure := httptest.NewUnstartedServer(fake)
	secure.EnableHTTP2 = true
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	stranger, err := leasehold.New(secure.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := stranger.Acquire(context.Background(), "report/42"); !errors.Is(err, leasehold.ErrDenied) {
		t.Errorf("got %v", err)
	}
	authorities := x509.NewCertPool()
	authorities.AddCert(secure.Certificate())
	client, err := leasehold.New(secure.URL, leasehold.WithTLS(&tls.Config{RootCAs: authorities}))
	if err != nil {
		t.Fatal(err)
	}
	lease, _ := acquire(t, client, "report/42")
	if err := lease.Check(); err != nil {
		t.Error(err)
	}
}

func TestAnAddressIsCheckedAtOnce(t *testing.T) {
	for _, address := range []string{"", "localhost:7420", "ftp://localhost", "http://", "http://localhost?x", "http://a b"} {
		if _, err := leasehold.New(address); !errors.Is(err, leasehold.ErrInvalid) {
			t.Errorf("%q: got %v", address, err)
		}
	}
}
