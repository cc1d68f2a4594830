package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"mime"
	"net/http"
	"path"
)

//go:embed static/*
var static embed.FS

// asset is a file that pages load. Its address holds a digest of it, so it may be
// kept for ever.
type asset struct {
	body    []byte
	version string
	media   string
}

func assets() (map[string]asset, error) {
	entries, err := static.ReadDir("static")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	files := map[string]asset{}
	for _, entry := range entries {
		body, err := static.ReadFile("static/" + entry.Name())
		if err != nil {
			return nil, fmt.Errorf("console: %w", err)
		}
		sum := sha256.Sum256(body)
		files[entry.Name()] = asset{body: body, version: hex.EncodeToString(sum[:6]), media: mime.TypeByExtension(path.Ext(entry.Name()))}
	}
	return files, nil
}

// assetPath is what pages call a file.
func (c *Console) assetPath(name string) string {
	return Root + "static/" + c.files[name].version + "/" + name
}

func (c *Console) serveAsset(w http.ResponseWriter, r *http.Request) {
	file, ok := c.files[r.PathValue("name")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", file.media)
	if r.PathValue("version") == file.version {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	_, _ = w.Write(file.body) // the client may be gone; nothing is left to tell it
}
