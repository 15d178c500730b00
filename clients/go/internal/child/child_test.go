package child

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"
)

// Set for the process that the test kills.
const isParent = "LEASEHOLD_TEST_IS_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(isParent) == "" {
		os.Exit(m.Run())
	}
	command := exec.Command("sh", "-c", "echo started; exec sleep 60")
	command.Stdout = os.Stdout
	ended, err := Start(command)
	if err != nil {
		panic(err)
	}
	<-ended
}

// The child has the other end of the pipe, too: the pipe ends when both have ended.
func TestAChildEndsWhenItsParentIsKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux can do this")
	}
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), isParent+"=1")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	parent.Stdout = write
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	lines := bufio.NewReader(read)
	if line, err := lines.ReadString('\n'); line != "started\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	_ = parent.Process.Kill()
	_ = parent.Wait()
	if err := read.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(lines); err != nil || len(rest) != 0 {
		t.Errorf("the child lives: %q, %v", rest, err)
	}
}
