package jobs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// FineTune is what OpenAI's fine-tuning API adds to a job of a train template:
// the job's Params are what its hyperparameters came to.
type FineTune struct {
	Model      string // the base model, by its configured name
	Training   string // id of the file of examples
	Validation string // id of the file of held-out examples; "" = none
	Asked      Hyperparameters
	Suffix     string // of the result's name
	Seed       int64
	Metadata   map[string]string

	Checked  bool   // the files were read and found good; until then the job waits for no slice
	Examples int    // in the training file
	Code     string // of the failure, for example "invalid_training_file"; "" = none
	Param    string // what the failure is about, for example "training_file"

	Tokens  int64    // trained, as the program said; 0 = it did not
	Results []string // ids of the result files: first the metrics, then what the program left
	Served  string   // the name by which the result can be asked for; "" = by none
}

// Hyperparameters are those of supervised fine-tuning as they were asked for;
// "" = auto: the template's default.
type Hyperparameters struct{ Epochs, BatchSize, LearningRate string }

// The template parameters that hyperparameters and the seed go into, and the
// words of the API reference for them.
const (
	ParamEpochs       = "n_epochs"
	ParamBatchSize    = "batch_size"
	ParamLearningRate = "learning_rate_multiplier"
	ParamSeed         = "seed"
)

// PurposeFineTuneResults is of the files that a fine-tuning job leaves.
const PurposeFineTuneResults = "fine-tune-results"

// The codes of a fine-tuning job's failure.
const (
	CodeTrainingFile   = "invalid_training_file"
	CodeValidationFile = "invalid_validation_file"
	CodeTooFew         = "invalid_n_examples"
	CodeTraining       = "training_failed" // the program failed
	CodeServer         = "server_error"    // the files could not be read
)

// FineTuneSpec asks for a fine-tuning job.
type FineTuneSpec struct {
	Model      string
	Training   string
	Validation string // "" = none
	Asked      Hyperparameters
	Suffix     string
	Seed       *int64 // nil = one is made
	Metadata   map[string]string
	Tenant     string
	// Idempotency is the user's key: asked for twice, made once; "" = none.
	Idempotency string
}

const (
	maxSuffix = 64 // characters (OpenAI)
	maxSeed   = 1<<31 - 1
)

// Validate checks what can be refused without a look at the files.
func (s FineTuneSpec) Validate() error {
	if len(s.Suffix) > maxSuffix || strings.Trim(s.Suffix, suffixLetters) != "" {
		return invalid("suffix", "%.80q: want up to %d letters, digits, '-', '_' or '.'", s.Suffix, maxSuffix)
	}
	if s.Seed != nil && (*s.Seed < 0 || *s.Seed > maxSeed) {
		return invalid("seed", "%d is not from 0 to %d", *s.Seed, maxSeed)
	}
	return cmp.Or(validKey(s.Idempotency), validMetadata(s.Metadata))
}

// suffixLetters are those of a suffix: it becomes part of a model's name, whose
// parts are set apart by colons.
const suffixLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

func validMetadata(pairs map[string]string) error {
	if len(pairs) > maxMetadata {
		return invalid("metadata", "%d pairs, at most %d", len(pairs), maxMetadata)
	}
	for k, v := range pairs {
		if utf8.RuneCountInString(k) > maxMetadataKey || utf8.RuneCountInString(v) > maxMetadataText {
			return invalid("metadata", "key %.20q: keys have at most %d characters, values %d", k, maxMetadataKey, maxMetadataText)
		}
	}
	return nil
}

// Name is what the result of job id of a tenant is called: ft:MODEL:TENANT:SUFFIX:ID.
func (f *FineTune) Name(id, tenant string) string {
	id = id[strings.LastIndexAny(id, "-_")+1:]
	return strings.Join([]string{"ft", f.Model, tenant, f.Suffix, id[max(0, len(id)-8):]}, ":")
}

// params are the template's values for a specification: seed is used where the
// specification has none.
func (s FineTuneSpec) params(t Template, seed int64) (map[string]string, error) {
	out := map[string]string{}
	for name, v := range map[string]string{ParamEpochs: s.Asked.Epochs, ParamBatchSize: s.Asked.BatchSize, ParamLearningRate: s.Asked.LearningRate} {
		i := slices.IndexFunc(t.Params, func(p Param) bool { return p.Name == name })
		if v == "" {
			if i >= 0 {
				out[name] = t.Params[i].Default
			}
			continue
		}
		if i < 0 {
			return nil, invalid("hyperparameters."+name, "model %s is trained with one that cannot be chosen; leave it out or say \"auto\"", s.Model)
		}
		if err := t.Params[i].check(v); err != nil {
			return nil, invalid("hyperparameters."+name, "%s", strings.TrimPrefix(err.Error(), "params."+name+": "))
		}
		out[name] = v
	}
	i := slices.IndexFunc(t.Params, func(p Param) bool { return p.Name == ParamSeed })
	if i < 0 {
		return out, nil
	}
	p := t.Params[i]
	if s.Seed == nil && p.check(fmt.Sprint(seed)) != nil {
		seed = int64(p.Min)
	} else if s.Seed != nil {
		seed = *s.Seed
	}
	if err := p.check(fmt.Sprint(seed)); err != nil {
		return nil, invalid("seed", "%s", strings.TrimPrefix(err.Error(), "params.seed: "))
	}
	out[ParamSeed] = fmt.Sprint(seed)
	return out, nil
}

// validTuner checks what a template that trains models for fine-tuning jobs must have.
func (t Template) validTuner() error {
	if len(t.FineTunes) == 0 {
		return nil
	}
	if t.Kind != KindTrain {
		return fmt.Errorf("kind is %q, want train, since it fine-tunes models", t.Kind)
	}
	for _, p := range t.Params {
		switch {
		case p.Default == "" && p.Name != ParamSeed:
			return fmt.Errorf("parameter %q needs a default, since fine-tuning jobs do not name it", p.Name)
		case slices.Contains([]string{ParamEpochs, ParamBatchSize, ParamLearningRate}, p.Name) && p.Type != ParamInt && p.Type != ParamFloat:
			return fmt.Errorf("parameter %q has type %q, want int or float, since it is a hyperparameter", p.Name, p.Type)
		}
	}
	return nil
}
