package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Role is what an operator may do; each includes the ones before it.
type Role string

// The roles.
const (
	RoleViewer   Role = "viewer"
	RoleOperator Role = "operator"
	RoleAdmin    Role = "admin"
)

var ranks = map[Role]int{RoleViewer: 1, RoleOperator: 2, RoleAdmin: 3}

// OperatorConfig is an operator in the settings, known by the hash of a token.
type OperatorConfig struct {
	// ID is the operator's name, as the audit log shows it.
	ID string `koanf:"id"`
	// Role is viewer, operator or admin; each may do what the one before may.
	Role Role `koanf:"role"`
	// TokenSHA256 is the hash of the bearer token, 64 hex digits; `lockstep token new` prints
	// both.
	TokenSHA256 string `koanf:"token_sha256"`
	// Tenants the operator may see; none: all.
	Tenants []int64 `koanf:"tenants"`
}

// Operator is a verified operator.
type Operator struct {
	ID      string
	Role    Role
	Tenants []int64
	// Issued: by a token of the issuer, which expires at Until, not by one of the settings.
	Issued bool
	Until  time.Time
}

// MaySee reports whether a tenant is within the operator's; nobody sees none.
func (o Operator) MaySee(tenant int64) bool {
	return o.ID != "" && (len(o.Tenants) == 0 || slices.Contains(o.Tenants, tenant))
}

// GenerateOperatorToken makes a bearer token and the hash of it for the settings.
func GenerateOperatorToken() (token, tokenSHA256 string) {
	token = rand.Text() + rand.Text()
	return token, HashOperatorToken(token)
}

// HashOperatorToken is what the settings keep of a token.
func HashOperatorToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// operators finds an operator by the hash of the token: looking a hash up tells
// nothing about the token by its timing.
type operators map[[sha256.Size]byte]Operator

func newOperators(configs []OperatorConfig) (operators, error) {
	known := operators{}
	ids := map[string]bool{}
	var problems []error
	for _, config := range configs {
		hash, err := hex.DecodeString(config.TokenSHA256)
		switch {
		case config.ID == "":
			problems = append(problems, errors.New("an operator has no id"))
		case ids[config.ID]:
			problems = append(problems, fmt.Errorf("operator %s is there twice", config.ID))
		case ranks[config.Role] == 0:
			problems = append(problems, fmt.Errorf("operator %s: role %q is unknown", config.ID, config.Role))
		case err != nil || len(hash) != sha256.Size:
			problems = append(problems, fmt.Errorf("operator %s: token_sha256 is not 64 hex digits", config.ID))
		case known[[sha256.Size]byte(hash)].ID != "":
			problems = append(problems, fmt.Errorf("operator %s has the token of another", config.ID))
		default:
			ids[config.ID] = true
			known[[sha256.Size]byte(hash)] = Operator{ID: config.ID, Role: config.Role, Tenants: slices.Clone(config.Tenants)}
		}
	}
	return known, errors.Join(problems...)
}

func (o operators) find(token string) (Operator, bool) {
	operator, ok := o[sha256.Sum256([]byte(token))]
	return operator, ok
}
