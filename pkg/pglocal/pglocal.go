// Package pglocal finds PostgreSQL on this machine and runs a private cluster
// from it, for the demo, for development and for tests.
//
// A cluster ends with the process that started it, however that process ends.
// It listens on a Unix socket that only its owner can reach and, if asked, on a
// loopback port with a random password. It is never meant for data that matters.
package pglocal

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options say where and how a cluster runs.
type Options struct {
	// Dir is the cluster's own folder, made if absent: data, socket, log, password.
	// A folder that has data already is used again.
	Dir string
	// BinDir holds the server's programs; "" looks for them.
	BinDir string
	// TCP also listens on a free loopback port, with a password.
	TCP bool
	// Params are server settings, such as "fsync": "off".
	Params map[string]string
}

// Cluster is a running private server. Its superuser is "postgres".
type Cluster struct {
	options  Options
	owner    *owner
	password string
	port     int
	server   *postmaster
}

const (
	socketPort   = 5432 // names the socket's file where no loopback port does
	startTimeout = 60 * time.Second
	stopTimeout  = 10 * time.Second
	maxSocketDir = 90 // of the 107 bytes a socket's path may have
)

// Start makes the cluster if its folder has none, starts it, and waits until it answers.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	c, err := prepare(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("prepare PostgreSQL in %s: %w", options.Dir, err)
	}
	if err := c.start(ctx); err != nil {
		return nil, fmt.Errorf("start PostgreSQL in %s: %w", options.Dir, err)
	}
	return c, nil
}

func prepare(ctx context.Context, options Options) (*Cluster, error) {
	if options.BinDir == "" {
		binDir, err := Find(ctx)
		if err != nil {
			return nil, err
		}
		options.BinDir = binDir
	}
	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, err
	}
	if len(dir) > maxSocketDir {
		return nil, fmt.Errorf("the folder's path is longer than %d bytes, too long for a socket in it", maxSocketDir)
	}
	options.Dir = dir
	owner, err := findOwner()
	if err != nil {
		return nil, err
	}
	c := &Cluster{options: options, owner: owner, port: socketPort}
	if err := owner.makeDir(dir); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(c.dataDir(), "PG_VERSION")); err != nil {
		if err := c.initdb(ctx); err != nil {
			return nil, err
		}
	}
	password, err := os.ReadFile(c.passwordFile())
	if err != nil {
		return nil, err
	}
	c.password = strings.TrimSpace(string(password))
	return c, nil
}

func (c *Cluster) dataDir() string      { return filepath.Join(c.options.Dir, "data") }
func (c *Cluster) passwordFile() string { return filepath.Join(c.options.Dir, "password") }
func (c *Cluster) logFile() string      { return filepath.Join(c.options.Dir, "log") }

// Dir is the cluster's folder.
func (c *Cluster) Dir() string { return c.options.Dir }

// PID is the server's process.
func (c *Cluster) PID() int { return c.server.pid }

func (c *Cluster) initdb(ctx context.Context) error {
	if err := c.owner.writeFile(c.passwordFile(), rand.Text()+"\n"); err != nil {
		return err
	}
	// A half-made folder of an interrupted start would be refused.
	if err := os.RemoveAll(c.dataDir()); err != nil {
		return err
	}
	//nolint:gosec // a program of the folder that was found
	cmd := exec.CommandContext(ctx, filepath.Join(c.options.BinDir, "initdb"),
		"--pgdata", c.dataDir(), "--username=postgres", "--pwfile", c.passwordFile(),
		"--auth-local=trust", "--auth-host=scram-sha-256",
		"--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
	cmd.Dir = c.options.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.owner.credential}
	if out, err := cmd.CombinedOutput(); err != nil {
		if c.owner.credential != nil {
			return fmt.Errorf("initdb as user %d, who must be able to reach the folder: %w: %s", c.owner.credential.Uid, err, strings.TrimSpace(string(out)))
		}
		return fmt.Errorf("initdb: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (c *Cluster) start(ctx context.Context) error {
	if c.options.TCP && c.port == socketPort {
		port, err := freePort(ctx)
		if err != nil {
			return err
		}
		c.port = port
	}
	server, err := c.launch()
	if err != nil {
		return err
	}
	c.server = server
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.awaitAnswer(ctx); err != nil {
		return errors.Join(err, server.stop(syscall.SIGQUIT))
	}
	return nil
}

// awaitAnswer asks until the server takes connections, or has ended.
func (c *Cluster) awaitAnswer(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, c.DSN("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-tick.C:
		case <-c.server.ended:
			return fmt.Errorf("the server ended at once; its log ends with: %s", c.logTail())
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w", errors.Join(ctx.Err(), err))
		}
	}
}

func (c *Cluster) logTail() string {
	const most = 1000
	text, err := os.ReadFile(c.logFile())
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-most):]))
}

// DSN reaches a database of the cluster through its socket.
func (c *Cluster) DSN(database string) string {
	values := url.Values{"host": {c.options.Dir}, "port": {strconv.Itoa(c.port)}, "sslmode": {"disable"}}
	return (&url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/" + database, RawQuery: values.Encode()}).String()
}

// TCPDSN reaches a database through the loopback port, with the password; only with Options.TCP.
func (c *Cluster) TCPDSN(database string) string {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port))
	return (&url.URL{Scheme: "postgres", User: url.UserPassword("postgres", c.password), Host: address, Path: "/" + database, RawQuery: "sslmode=disable"}).String()
}

// SocketFile is the path of the server's socket.
func (c *Cluster) SocketFile() string {
	return filepath.Join(c.options.Dir, ".s.PGSQL."+strconv.Itoa(c.port))
}

// CreateDatabase makes an empty database; one that exists is left as it is.
func (c *Cluster) CreateDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, c.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is pending on it
	var exists bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name).Scan(&exists); err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	if exists {
		return nil
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// Stop ends the server: open transactions roll back, data is written out.
func (c *Cluster) Stop() error { return c.server.stop(syscall.SIGINT) }

// StopImmediate ends the server as a crash would; the next start recovers.
func (c *Cluster) StopImmediate() error { return c.server.stop(syscall.SIGQUIT) }

// Restart stops the server, as a crash would if immediate, and starts it on the
// same data, socket and port.
func (c *Cluster) Restart(ctx context.Context, immediate bool) error {
	signal := syscall.SIGINT
	if immediate {
		signal = syscall.SIGQUIT
	}
	if err := c.server.stop(signal); err != nil {
		return fmt.Errorf("restart PostgreSQL: %w", err)
	}
	if err := c.start(ctx); err != nil {
		return fmt.Errorf("restart PostgreSQL: %w", err)
	}
	return nil
}

// freePort asks the kernel for a port nobody holds.
func freePort(ctx context.Context) (int, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return 0, errors.Join(err, listener.Close())
	}
	number, err := strconv.Atoi(port)
	return number, errors.Join(err, listener.Close())
}
