package fencetest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"syscall"
	"testing"

	"github.com/leasehold/leasehold/clients/go/internal/child"
)

// The program that serves leases, and prints the SQL of the fence.
func program() string {
	if named := os.Getenv("LEASEHOLD_PROGRAM"); named != "" {
		return named
	}
	return filepath.Join("..", "..", "..", "target", "debug", "leasehold")
}

// storeFolder is a folder in memory, if there is such a place: a busy disk delays commits by seconds.
func storeFolder(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("/dev/shm", "leasehold-fence")
	if err != nil {
		folder, err = os.MkdirTemp("", "leasehold-fence")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	return folder
}

// startLeasehold starts a server of leases, and returns its address.
func startLeasehold(t *testing.T) string {
	t.Helper()
	store := "sqlite:" + filepath.Join(storeFolder(t), "leases.db")
	command := exec.Command(program(), "--store", store, "--json", "serve", "--listen", "127.0.0.1:0")
	command.Stderr = os.Stderr
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ended, err := child.Start(command)
	if err != nil {
		t.Fatalf("%v: cargo build -p leasehold-cli builds it, and LEASEHOLD_PROGRAM names it", err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		<-ended
	})
	var said struct {
		Listening string `json:"listening"`
	}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &said)
	}
	if err != nil {
		t.Fatal("the server did not start: ", err)
	}
	return said.Listening
}

// startPostgres starts a PostgreSQL of its own, unless LEASEHOLD_TEST_POSTGRES names an empty one, and returns its URL.
func startPostgres(t *testing.T) string {
	t.Helper()
	if url := os.Getenv("LEASEHOLD_TEST_POSTGRES"); url != "" {
		return url
	}
	folder := storeFolder(t)
	account := accountOfPostgres(t, folder)
	data := filepath.Join(folder, "data")
	initdb := exec.Command(binary(t, "initdb"), "-D", data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C")
	initdb.SysProcAttr = account
	if output, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	port := freePort(t)
	server := exec.Command(binary(t, "postgres"), "-D", data, "-k", folder, "-p", port, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off")
	server.SysProcAttr, server.Dir = account, folder
	ended, err := child.Start(server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGQUIT)
		<-ended
	})
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%s/postgres?sslmode=disable", port)
}

// accountOfPostgres is the account that PostgreSQL runs under: it refuses to run as root.
func accountOfPostgres(t *testing.T, folder string) *syscall.SysProcAttr {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	account, err := user.Lookup("postgres")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(account.Uid)
	gid, _ := strconv.Atoi(account.Gid)
	if err := os.Chown(folder, uid, gid); err != nil {
		t.Fatal(err)
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}

func binary(t *testing.T, name string) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	sort.Strings(found)
	if len(found) > 0 {
		return found[len(found)-1]
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal("the test needs the package postgresql: ", err)
	}
	return path
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}
