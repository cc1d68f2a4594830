package admin

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
)

// listQuery is the digest of a list's filter. A page token goes on with the
// list that it came from and with no other.
type listQuery [8]byte

func filter(parts ...any) listQuery {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", parts))
	return listQuery(sum[:8])
}

type taskToken struct {
	Query listQuery `json:"q"`
	At    time.Time `json:"t"`
	ID    string    `json:"i"`
}

type grantToken struct {
	Query listQuery   `json:"q"`
	After store.Scope `json:"a"`
}

func errToken() error {
	return fault.New(fault.InvalidArgument, "malformed list request").WithField("page_token", "comes from the answer before, to the same request")
}

func encode(token any) string {
	text, err := json.Marshal(token)
	if err != nil {
		panic(fmt.Sprintf("a page token has only plain fields: %v", err))
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// maxToken bounds what is decoded; a real one is below it.
const maxToken = 1 << 10

func decode(token string, into any) error {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(token) > maxToken || json.Unmarshal(text, into) != nil {
		return errToken()
	}
	return nil
}

func (q listQuery) afterTask(t *task.Task) string {
	return encode(taskToken{Query: q, At: t.CreatedAt, ID: protocol.FormatID(t.ID)})
}

func (q listQuery) resumeTasks(token string, page *store.TaskPage) error {
	if token == "" {
		return nil
	}
	var t taskToken
	if err := decode(token, &t); err != nil {
		return err
	}
	id, err := protocol.ParseID(t.ID)
	if err != nil || t.Query != q || t.At.IsZero() {
		return errToken()
	}
	page.AfterTime, page.AfterID = t.At, uuid.UUID(id)
	return nil
}

func (q listQuery) afterGrant(g store.Grant) string {
	return encode(grantToken{Query: q, After: g.Scope})
}

func (q listQuery) resumeGrants(token string, page *store.GrantPage) error {
	if token == "" {
		return nil
	}
	var t grantToken
	if err := decode(token, &t); err != nil {
		return err
	}
	if t.Query != q || t.After.Consumer == "" {
		return errToken()
	}
	page.After = &t.After
	return nil
}
