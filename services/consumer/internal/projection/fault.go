package projection

import (
	"errors"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/pg"
)

// Fault says what a failed write calls for.
type Fault int

// What the caller may do about an error of this package.
const (
	// Transient: nothing is known to be wrong with the rows; try again later.
	Transient Fault = iota + 1
	// RowsOwn: the host's table refuses a row for what it is. Bisect the batch;
	// one row alone is quarantined.
	RowsOwn
	// Busy: a host transaction kept a row's key or unique value for too long.
	// Bisect the batch; one row alone counts as changed locally.
	Busy
	// Misconfigured: the statement can't work against this table or role, whatever the rows are.
	Misconfigured
)

// FaultOf classifies an error of a write by its SQLSTATE.
func FaultOf(err error) Fault {
	if errors.Is(err, ErrUnrepresentable) {
		return RowsOwn
	}
	code := pg.Code(err)
	if len(code) != 5 {
		return Transient
	}
	switch code {
	case "54000", "54001", // an index entry too large; JSON nested too deep for the server's stack
		"44000", // the WITH CHECK OPTION of a view
		"P0001": // a trigger of the host raised an exception
		return RowsOwn
	case "55P03": // lock_timeout
		return Busy
	}
	switch code[:2] {
	case "22", "23": // data; integrity constraints
		return RowsOwn
	case "42", "28", "3D", "3F", "0A": // names and privileges; authentication; database; schema; unsupported
		return Misconfigured
	}
	return Transient
}

// Coded gives the error of a write of one row its stable code, where the host's
// table refuses the row or a host transaction holds it; others stay as they are.
func Coded(err error) error {
	switch {
	case err == nil:
		return nil
	case FaultOf(err) == RowsOwn:
		return fault.Wrap(err, fault.Quarantined, "the host's table refuses the row")
	case FaultOf(err) == Busy:
		return fault.Wrap(err, fault.Unavailable, "a host transaction holds the row")
	default:
		return err
	}
}
