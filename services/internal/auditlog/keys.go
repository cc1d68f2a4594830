package auditlog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/identity"
)

// NoteKeys leaves a row when a service starts with another key or other trust
// than the start before: keys are files, and this is where a change of them shows.
func NoteKeys(ctx context.Context, pool *pgxpool.Pool, key *identity.KeyFile, trustFile string) error {
	trust, err := os.ReadFile(trustFile) //nolint:gosec // the operator names the file
	if err != nil {
		return fmt.Errorf("read the trust store: %w", err)
	}
	public := key.Public()
	reason := fmt.Sprintf("public key sha256:%s, trust store sha256:%s", digest(public.PublicKey), digest(trust))
	_, err = pool.Exec(ctx, `INSERT INTO lockstep.audit (actor, action, object, decision, reason)
		SELECT $1::text, 'keys.use', 'keys', $2::text, $3::text WHERE NOT EXISTS (
			SELECT FROM (SELECT actor, decision, reason FROM lockstep.audit WHERE object = 'keys' ORDER BY audit_id DESC LIMIT 1) AS last
			WHERE (last.actor, last.decision, last.reason) = ($1::text, $2::text, $3::text))`, key.AppKey, key.KeyID, reason)
	if err != nil {
		return fmt.Errorf("audit the keys in use: %w", err)
	}
	return nil
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
