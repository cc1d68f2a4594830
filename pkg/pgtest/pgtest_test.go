package pgtest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/pgtest"
)

func TestX(t *testing.T) {
	for i := 0; i < 20; i++ {
		t.Run("c", func(t *testing.T) {
			dsn := pgtest.Center(t)
			c, err := pgx.Connect(context.Background(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			c.Close(context.Background())
			pgtest.Consumer(t)
		})
	}
}
