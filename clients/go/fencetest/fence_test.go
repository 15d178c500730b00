package fencetest

import (
	"context"
	"database/sql"
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	leasehold "github.com/leasehold/leasehold/clients/go"
)

// errStale: the fence has seen a higher token. The token will never be valid again.
var errStale = errors.New("another holder has written since")

// writePgx writes under a lease, with pgx.
func writePgx(ctx context.Context, pool *pgxpool.Pool, lease *leasehold.Lease, body string) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT leasehold_fence.admit($1)", lease.Pass()); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE report SET body = $1 WHERE id = 42", body)
		return err
	})
	return explain(err)
}

// writeSQL does the same with database/sql.
func writeSQL(ctx context.Context, db *sql.DB, lease *leasehold.Lease, body string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "SELECT leasehold_fence.admit($1)", lease.Pass()); err != nil {
		return explain(err)
	}
	if _, err := tx.ExecContext(ctx, "UPDATE report SET body = $1 WHERE id = 42", body); err != nil {
		return err
	}
	return tx.Commit()
}

// writeColumn needs no fence: the table has a column for the token.
func writeColumn(ctx context.Context, db *sql.DB, lease *leasehold.Lease, body string) error {
	const update = "UPDATE report SET body = $1, last_fencing_token = $2 WHERE id = 42 AND last_fencing_token < $2"
	result, err := db.ExecContext(ctx, update, body, lease.Token())
	if err != nil {
		return err
	}
	if changed, err := result.RowsAffected(); err != nil || changed == 1 {
		return err
	}
	return errStale
}

func explain(err error) error {
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "LH001" {
		return errStale
	}
	return err
}

func TestAStaleHolderIsRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	url := startPostgres(t)
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for pool.Ping(ctx) != nil {
		if ctx.Err() != nil {
			t.Fatal("PostgreSQL does not answer")
		}
		time.Sleep(50 * time.Millisecond)
	}
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	setUp(ctx, t, pool)
	client, err := leasehold.New(startLeasehold(t))
	if err != nil {
		t.Fatal(err)
	}
	writers := map[string]func(*leasehold.Lease, string) error{
		"pgx":    func(l *leasehold.Lease, body string) error { return writePgx(ctx, pool, l, body) },
		"sql":    func(l *leasehold.Lease, body string) error { return writeSQL(ctx, db, l, body) },
		"column": func(l *leasehold.Lease, body string) error { return writeColumn(ctx, db, l, body) },
	}
	for name, write := range writers {
		late, _, err := client.Acquire(ctx, "report/42")
		if err != nil {
			t.Fatal(err)
		}
		if err := write(late, name+": the first"); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := late.Release(ctx); err != nil {
			t.Fatal(err)
		}
		next, _, err := client.Acquire(ctx, "report/42")
		if err != nil {
			t.Fatal(err)
		}
		if err := write(next, name+": the next"); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		// It was stopped, and does not know that its lease is over.
		if err := write(late, name+": too late"); err != errStale {
			t.Errorf("%s: got %v", name, err)
		}
		var body string
		if err := pool.QueryRow(ctx, "SELECT body FROM report").Scan(&body); err != nil || body != name+": the next" {
			t.Errorf("%s: got %q, %v", name, body, err)
		}
		if err := next.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// setUp does what a migration does: the table, and the output of `leasehold fence schema`.
func setUp(ctx context.Context, t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	schema, err := exec.Command(program(), "fence", "schema").Output()
	if err != nil {
		t.Fatal(err)
	}
	const table = `CREATE TABLE report (id int PRIMARY KEY, body text, last_fencing_token bigint NOT NULL DEFAULT 0);
		INSERT INTO report VALUES (42, '');`
	for _, statements := range []string{string(schema), table} {
		if _, err := pool.Exec(ctx, statements); err != nil {
			t.Fatal(err)
		}
	}
}
