package identity

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A message comes in the pieces that the connection had, and is read into a
// buffer that was another one's before.
func TestMessagesOfAnySizeAreReceived(t *testing.T) {
	codec := clientCodec{protoCodec()}
	for _, size := range []int{2 << 20, 0, 1, 100_000, 40_000, 600_000, 1 << 20, 70_000} {
		want := wrapperspb.Bytes(bytes.Repeat([]byte{byte(size % 251)}, size))
		text, err := serialise(want)
		if err != nil {
			t.Fatal(err)
		}
		for _, piece := range []int{16 << 10, max(1, len(text))} {
			var data mem.BufferSlice
			for rest := []byte(text); len(rest) > 0; rest = rest[min(piece, len(rest)):] {
				data = append(data, mem.SliceBuffer(rest[:min(piece, len(rest))]))
			}
			var got wrapperspb.BytesValue
			if err := codec.Unmarshal(data, &got); err != nil || !bytes.Equal(got.GetValue(), want.GetValue()) {
				t.Errorf("%d bytes in pieces of %d: %v", size, piece, err)
			}
		}
	}
}
