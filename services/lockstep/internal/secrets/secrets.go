// Package secrets makes the files that a local deployment keeps apart from its
// settings: keys, certificates, passwords and one operator's token.
//
// It promises that every one of them is random, that none is written over, and
// that only their owner can read those that matter. They are for a deployment on
// one machine: the authority that signed the certificates is forgotten at once.
package secrets

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"lockstep.dev/pkg/identity"
	"lockstep.dev/services/lockstep/internal/dev"
)

// Options say what to make.
type Options struct {
	// Dir is a new or empty folder; it is made of mode 0700.
	Dir string
	// UID and GID own the files; -1 leaves them to the caller.
	UID, GID int
	// Days of validity of keys and certificates.
	Days int
	Now  time.Time
}

// Where the compose deployment publishes what a person may reach, on loopback.
const (
	centerDatabase   = "15431"
	consumerDatabase = "15432"
	centerHTTP       = "https://127.0.0.1:18081"
	consumerHTTP     = "https://127.0.0.1:18082"
)

const (
	private = 0o600
	// Read in containers by users that differ from image to image; the folder keeps others out.
	shared = 0o644
	folder = 0o700
)

// Make makes all of them. What fails leaves what was made: the folder was new.
func Make(o Options) error {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return err
	}
	o.Dir = dir
	if err := o.makeDir(); err != nil {
		return err
	}
	w := &writer{options: o}
	w.identities()
	w.certificates()
	w.passwords()
	w.operator()
	return w.err
}

func (o Options) makeDir() error {
	if err := os.MkdirAll(o.Dir, folder); err != nil {
		return err
	}
	entries, err := os.ReadDir(o.Dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty; nothing in it is written over", o.Dir)
	}
	return os.Chmod(o.Dir, folder)
}

// writer writes files until the first error.
type writer struct {
	options Options
	err     error
}

func (w *writer) file(name string) string { return filepath.Join(w.options.Dir, name) }

func (w *writer) write(name string, mode os.FileMode, text []byte) {
	w.do(func() error { return os.WriteFile(w.file(name), text, mode) })
	w.give(name, mode)
}

// give makes the mode certain, whatever the umask, and gives the file to its owner.
func (w *writer) give(name string, mode os.FileMode) {
	w.do(func() error { return os.Chmod(w.file(name), mode) })
	if w.options.UID >= 0 {
		w.do(func() error { return os.Chown(w.file(name), w.options.UID, w.options.GID) })
	}
}

func (w *writer) do(step func() error) {
	if w.err == nil {
		w.err = step()
	}
}

// identities are the services' signing keys and what each trusts.
func (w *writer) identities() {
	var public []identity.TrustKey
	for _, app := range []string{dev.CenterApp, dev.ConsumerApp} {
		name := app + ".key.json"
		w.do(func() error {
			key, err := identity.GenerateKeyFile(w.file(name), identity.KeyParams{
				AppKey: app, KeyID: app + "-1", Use: []identity.Use{identity.UseRequest, identity.UseStatement, identity.UseCursor},
				NotBefore: w.options.Now.Add(-time.Hour), NotAfter: w.options.Now.AddDate(0, 0, w.options.Days),
			})
			if err == nil {
				public = append(public, key.Public())
			}
			return err
		})
		w.give(name, private)
	}
	w.do(func() error { return identity.WriteTrust(w.file("trust.json"), public...) })
	w.give("trust.json", private)
}

// certificates are an authority's, and one for each server under its compose name and loopback.
func (w *writer) certificates() {
	authority := &x509.Certificate{
		Subject: pkix.Name{CommonName: "lockstep local authority"}, IsCA: true, KeyUsage: x509.KeyUsageCertSign, MaxPathLenZero: true,
	}
	signer := w.certificate("ca", authority, nil, nil)
	for _, name := range []string{"center", "consumer", "collector"} {
		w.certificate(name, &x509.Certificate{
			Subject: pkix.Name{CommonName: name}, DNSNames: []string{name, "localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}, authority, signer)
	}
}

const serialBits = 120

// certificate issues one; the authority's own, whose parent is nil, keeps no private key.
func (w *writer) certificate(name string, c, parent *x509.Certificate, signer *ecdsa.PrivateKey) *ecdsa.PrivateKey {
	var key *ecdsa.PrivateKey
	var der []byte
	w.do(func() (err error) {
		c.NotBefore, c.NotAfter, c.BasicConstraintsValid = w.options.Now.Add(-time.Hour), w.options.Now.AddDate(0, 0, w.options.Days), true
		if c.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits)); err != nil {
			return err
		}
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return err
		}
		if parent == nil {
			parent, signer = c, key
		}
		der, err = x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
		return err
	})
	w.write(name+".crt", shared, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	if parent == c {
		return key
	}
	w.do(func() error {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return err
		}
		w.write(name+".key", private, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
		return w.err
	})
	return key
}

// passwords are one for each role, as the databases read them and as their clients
// do, and one for the dashboard's admin.
func (w *writer) passwords() {
	w.write("grafana.password", shared, []byte(rand.Text()+"\n"))
	for _, database := range []struct {
		name, port string
		services   []string // roles beside the owner
	}{
		{"center", centerDatabase, []string{"service", "source"}},
		{"consumer", consumerDatabase, []string{"service"}},
	} {
		w.write(database.name+"-superuser.password", shared, []byte(rand.Text()+"\n"))
		owner := rand.Text()
		w.write(database.name+"-owner.password", shared, []byte(owner+"\n"))
		w.write(database.name+"-owner.pgpass", private, []byte("*:*:*:lockstep_owner:"+owner+"\n"))
		lines := ""
		for _, role := range database.services {
			password := rand.Text()
			w.write(database.name+"-"+role+".password", shared, []byte(password+"\n"))
			user := map[string]string{"service": "lockstep_" + database.name, "source": "lockstep_source"}[role]
			lines += "*:*:*:" + user + ":" + password + "\n"
		}
		w.write(database.name+".pgpass", private, []byte(lines))
	}
}

// operator is a token of an admin, its hash as both services' settings take it,
// and how `lockstep demo --against` reaches the deployment.
func (w *writer) operator() {
	token, hash := identity.GenerateOperatorToken()
	w.write("operator.token", private, []byte(token+"\n"))
	for _, service := range []string{"center", "consumer"} {
		prefix := map[string]string{"center": "LOCKSTEP_CENTER", "consumer": "LOCKSTEP_CONSUMER"}[service] + "__OPERATORS__"
		w.write(service+"-operator.env", private, fmt.Appendf(nil, "%sID=local\n%sROLE=%s\n%sTOKEN_SHA256=%s\n", prefix, prefix, identity.RoleAdmin, prefix, hash))
	}
	dsn := func(port, name string) string {
		return fmt.Sprintf("host=127.0.0.1 port=%s user=lockstep_owner dbname=%s sslmode=disable passfile=%s", port, name, w.file(name+"-owner.pgpass"))
	}
	w.do(func() error {
		text, err := json.MarshalIndent(dev.Reach{
			CenterREST: centerHTTP, ConsumerREST: consumerHTTP, CAFile: w.file("ca.crt"), OperatorToken: token,
			CenterDSN: dsn(centerDatabase, "center"), ConsumerDSN: dsn(consumerDatabase, "consumer"), Consumer: dev.ConsumerApp,
		}, "", "  ")
		if err != nil {
			return fmt.Errorf("describe the deployment: %w", err)
		}
		w.write("against.json", private, append(text, '\n'))
		return w.err
	})
}
