package leasehold_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheFirstScreenOfTheReadmeWorks(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "```go\n")
	program, _, found := strings.Cut(rest, "```")
	if !found || !strings.Contains(program, "http://localhost:7420") {
		t.Fatal("the README begins with a program")
	}
	file := filepath.Join(t.TempDir(), "main.go")
	program = strings.Replace(program, "http://localhost:7420", server, 1)
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	output, err := exec.Command("go", "run", file).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(output), "working with token ") {
		t.Errorf("%v: %s", err, output)
	}
}
