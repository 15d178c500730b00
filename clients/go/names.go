package leasehold

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	nameMax = 64
	idMax   = 256
)

// keyOf is the key of a resource, as the server writes it: the id is percent-encoded. Several leases are acquired in the
// byte order of their keys.
func keyOf(resource string) (string, error) {
	names, id, found := strings.Cut(resource, "/")
	if !found {
		return "", invalidName(resource, "write kind/id, as in report/42")
	}
	kind := names
	if namespace, rest, found := strings.Cut(names, ":"); found {
		kind = rest
		if !isName(namespace) {
			return "", invalidName(resource, "a namespace has 1 to 64 of a-z, 0-9, '.', '_' and '-'")
		}
	}
	if !isName(kind) {
		return "", invalidName(resource, "a kind has 1 to 64 of a-z, 0-9, '.', '_' and '-'")
	}
	if len(id) < 1 || len(id) > idMax {
		return "", invalidName(resource, fmt.Sprintf("an id has 1 to %d bytes, this one has %d", idMax, len(id)))
	}
	if !utf8.ValidString(id) || strings.IndexFunc(id, unicode.IsControl) >= 0 {
		return "", invalidName(resource, "an id is UTF-8 without control characters")
	}
	return names + "/" + percentEncoded(id), nil
}

func invalidName(resource, why string) error {
	return &InvalidError{Kind: "invalid", Message: fmt.Sprintf("%q is not a valid resource name: %s", resource, why)}
}

func isName(name string) bool {
	if len(name) < 1 || len(name) > nameMax {
		return false
	}
	return strings.IndexFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
	}) < 0
}

func percentEncoded(id string) string {
	var key strings.Builder
	for i := 0; i < len(id); i++ {
		b := id[i]
		isPlain := b >= 'A' && b <= 'Z' || b >= 'a' && b <= 'z' || b >= '0' && b <= '9' ||
			strings.IndexByte("-._:@+=,", b) >= 0
		if isPlain {
			key.WriteByte(b)
		} else {
			fmt.Fprintf(&key, "%%%02X", b)
		}
	}
	return key.String()
}

// A claim names a resource and its owner token, which is the secret that renews and releases the lease.
//
// The secret is behind a pointer: fmt prints the fields of structs, also the unexported ones, but follows no pointers in
// them.
type claim struct {
	resource  string
	key       string
	owner     *string
	ownerHash string
}

// newClaim draws a fresh owner token.
func newClaim(resource, key string) (claim, error) {
	owner, err := randomHex(16)
	if err != nil {
		return claim{}, err
	}
	hash := sha256.Sum256([]byte(owner))
	return claim{resource, key, &owner, hex.EncodeToString(hash[:16])}, nil
}

func randomHex(bytes int) (string, error) {
	random := make([]byte, bytes)
	if _, err := rand.Read(random); err != nil {
		return "", fmt.Errorf("leasehold: no random numbers: %w", err)
	}
	return hex.EncodeToString(random), nil
}
