package refresh

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.dev/pkg/fault"
)

// maxMessage is the longest stored message, in characters.
const maxMessage = 1000

const mask = "***"

var (
	// "payee_account_name: Zhang San", `"open_bank":"…"`, "账号=6222…"
	namedSecret = regexp.MustCompile(`(?i)("?[\p{L}\p{N}_.]*(?:payee|account|bank|card|iban|收款|户名|账号|账户|卡号|开户|银行)[\p{L}\p{N}_.]*"?)` +
		`(\s*[:=：]\s*|\s+)("(?:[^"\\]|\\.)*"|'[^']*'|“[^”]*”)|` +
		`(?i)("?[\p{L}\p{N}_.]*(?:payee|account|bank|card|iban|收款|户名|账号|账户|卡号|开户|银行)[\p{L}\p{N}_.]*"?)(\s*[:=：]\s*)([^,;，；。)\]}"\n]+)`)
	// "Key (payee_account_no)=(6222…)"
	keyValues = regexp.MustCompile(`\)=\([^)]*\)`)
	quoted    = regexp.MustCompile(`"[^"]*"`)
	// Account numbers; a number that is said to be an id is not one.
	numbers = regexp.MustCompile(`(?i)((?:\bid|\bids|line|order|diff|difference|task|bill|station|scope|candidate|month|period)\s*[=:#]?\s*)?` +
		`\b(?:\d{9,}|\d{4}(?:[ -]\d{4}){2,}(?:[ -]\d{1,4})?|[A-Z]{2}\d{2}[A-Z0-9]{10,30})\b`)
)

// failure gives the code and the message stored for an error: payee names,
// banks and account numbers masked, cut to maxMessage characters.
func failure(err error) (code fault.Reason, message string) {
	code = fault.ReasonOf(fault.ToStatus(err))
	return code, cut(maskText(textOf(err)))
}

// textOf tells an error to people. It leaves out what PostgreSQL quotes of a row,
// and the code of a refusal, which stands beside the message.
func textOf(err error) string {
	text := err.Error()
	told := func(part error, words string) {
		if before, _, found := strings.Cut(text, part.Error()); found {
			text = before + words // the deed in front says what was tried
		}
	}
	if refused, ok := errors.AsType[*fault.Error](err); ok {
		text = refused.Message
		for _, field := range refused.Fields {
			text += fmt.Sprintf("; %s %s", field.Name, field.Message)
		}
	} else if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		told(refused, fmt.Sprintf("the database refused it: %s (SQLSTATE %s)", quoted.ReplaceAllString(refused.Message, `"`+mask+`"`), refused.Code))
	} else if away, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		told(away, "the database does not answer")
	} else if errors.Is(err, context.DeadlineExceeded) {
		told(context.DeadlineExceeded, "it took longer than it may")
	}
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "")
}

func maskText(text string) string {
	text = namedSecret.ReplaceAllString(text, "$1$2$4$5"+mask)
	text = keyValues.ReplaceAllString(text, ")=("+mask+")")
	return numbers.ReplaceAllStringFunc(text, func(found string) string {
		if parts := numbers.FindStringSubmatch(found); parts[1] != "" {
			return found
		}
		return mask + found[len(found)-4:]
	})
}

// cut bounds a text in characters, never within one.
func cut(text string) string {
	count := 0
	for i := range text {
		if count == maxMessage {
			return text[:i]
		}
		count++
	}
	return text
}
