// Package migrations holds every schema change of Lockstep, embedded.
//
// Center and Consumer are the services' own tables, in schema "lockstep".
// AnswersCenter and AnswersConsumer are the bundled example's host tables: a
// system of record with forms and answers, and a host application's projection
// of them. A deployment with its own tables applies only the first two, and
// Bills where bill snapshots are kept, in schema "bills".
package migrations

import "embed"

// Center holds the center's own tables.
//
//go:embed center/*.sql
var Center embed.FS

// Consumer holds the consumer's own tables.
//
//go:embed consumer/*.sql
var Consumer embed.FS

// AnswersCenter holds the example system of record.
//
//go:embed answers_center/*.sql
var AnswersCenter embed.FS

// AnswersConsumer holds the example projection.
//
//go:embed answers_consumer/*.sql
var AnswersConsumer embed.FS

// Bills holds payment facts and the bill snapshot computed from them.
//
//go:embed bills/*.sql
var Bills embed.FS

// Scores holds what is known of candidates and the scores computed from it.
//
//go:embed scores/*.sql
var Scores embed.FS
