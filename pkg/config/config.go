// Package config reads a service's settings: a YAML file, overlaid by the
// environment. A setting nobody knows stops the start by its name, as does an
// impossible one; all problems are told at once.
//
// Keys and tokens are never settings: settings name files and hashes.
package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
)

// separator parts the levels inside koanf. Map keys come from users, and an app
// key may well contain a dot.
const separator = "\x1f"

// Load fills into, a pointer to a struct with `koanf` tags that holds the
// defaults, from the YAML file at path ("" for none) and from variables
// PREFIX__DISPATCH__ENABLED=true (a double underscore is a level). Durations are
// written "60s". If into has Validate() error, it is called last.
func Load(path, envPrefix string, into any) error {
	k := koanf.New(separator)
	if path != "" {
		if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
			return fmt.Errorf("read settings %s: %w", path, err)
		}
	}
	if err := k.Load(env.Provider(separator, env.Opt{Prefix: envPrefix + "__", TransformFunc: variable(envPrefix)}), nil); err != nil {
		return fmt.Errorf("read settings from the environment: %w", err)
	}
	if err := decode(k, into); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	if checked, ok := into.(interface{ Validate() error }); ok {
		if err := checked.Validate(); err != nil {
			return fmt.Errorf("settings: %w", err)
		}
	}
	return nil
}

// variable turns PREFIX__A__B_C into the path a, b_c.
func variable(prefix string) func(key, value string) (string, any) {
	return func(key, value string) (string, any) {
		path := strings.ToLower(strings.TrimPrefix(key, prefix+"__"))
		return strings.ReplaceAll(path, "__", separator), value
	}
}

func decode(k *koanf.Koanf, into any) error {
	return k.UnmarshalWithConf("", into, koanf.UnmarshalConf{
		Tag: "koanf",
		DecoderConfig: &mapstructure.DecoderConfig{
			Result:           into,
			ErrorUnused:      true,
			WeaklyTypedInput: true, // the environment has only strings
			DecodeHook: mapstructure.ComposeDecodeHookFunc(
				duration,
				mapstructure.StringToSliceHookFunc(","),
				mapstructure.TextUnmarshallerHookFunc(),
			),
		},
	})
}

var errDuration = errors.New(`a duration has a unit, like "60s"`)

// duration reads time.Duration from text only: a bare number would be nanoseconds.
func duration(from, to reflect.Type, value any) (any, error) {
	if to != reflect.TypeFor[time.Duration]() || from == to {
		return value, nil
	}
	text, ok := value.(string)
	if !ok {
		return nil, errDuration
	}
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return nil, errDuration
	}
	return parsed, nil
}

// Problems collects what is wrong with settings, so that all of it is told at once.
type Problems struct{ found []error }

// Check notes a problem unless ok holds.
func (p *Problems) Check(ok bool, format string, args ...any) {
	if !ok {
		p.found = append(p.found, fmt.Errorf(format, args...))
	}
}

// Add notes err under the setting's name, unless it is nil.
func (p *Problems) Add(setting string, err error) {
	if err != nil {
		p.found = append(p.found, fmt.Errorf("%s: %w", setting, err))
	}
}

// Err returns everything noted, nil if nothing was.
func (p *Problems) Err() error { return errors.Join(p.found...) }
