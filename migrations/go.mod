module lockstep.dev/migrations

go 1.26.0
