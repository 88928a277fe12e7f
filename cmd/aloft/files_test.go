package main

import (
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"

	"aloft/loadgen"
	"aloft/sim/scenario"
)

const root = "../.."

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Every YAML file that ships is read by the loader that will read it.
func TestFilesConfigs(t *testing.T) {
	metrics := documented(t)
	loaders := map[string]func(file string) error{
		"scenarios": func(file string) error { _, err := scenario.Load(file); return err },
		"alerts":    func(file string) error { return loadAlerts(file, metrics) },
		".":         func(file string) error { _, err := loadConfig(file); return err },
		"examples":  func(file string) error { _, err := loadConfig(file); return err },
		"loadgen": func(file string) error {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			var opt loadgen.Options
			if err := yaml.UnmarshalWithOptions(text, &opt, yaml.Strict()); err != nil {
				return err
			}
			return opt.Validate()
		},
	}
	dir := filepath.Join(root, "configs")
	n := 0
	err := fs.WalkDir(os.DirFS(dir), ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains([]string{".yaml", ".yml"}, path.Ext(file)) {
			return err
		}
		load := loaders[path.Dir(file)]
		if load == nil {
			t.Errorf("configs/%s: nothing here reads YAML of this folder", file)
			return nil
		}
		if n++; load(filepath.Join(dir, file)) != nil {
			t.Errorf("configs/%s: %v", file, load(filepath.Join(dir, file)))
		}
		return nil
	})
	if err != nil || n < 4 {
		t.Errorf("%d files (%v), want the quick start and three profiles at least", n, err)
	}
}

// stage is a FROM of the Dockerfile with what follows it.
type stage struct {
	from, name string
	steps      [][2]string // instruction, rest
}

var escaped = regexp.MustCompile(`\\\n\s*`)

func dockerfile(t *testing.T) []stage {
	t.Helper()
	var out []stage
	text := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(read(t, "Dockerfile"), "")
	for line := range strings.Lines(escaped.ReplaceAllString(text, "")) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case word == "":
		case word == "FROM":
			f := strings.Fields(rest)
			if len(f) != 3 || f[1] != "AS" {
				t.Fatalf("FROM %s: want FROM image AS name", rest)
			}
			out = append(out, stage{from: f[0], name: f[2]})
		case len(out) == 0:
			t.Fatalf("%s before the first FROM", word)
		default:
			s := &out[len(out)-1]
			s.steps = append(s.steps, [2]string{word, rest})
		}
	}
	return out
}

// The images cannot be built everywhere, so what most often breaks them is held
// here: stages that exist, images of a stated version, and sources that exist
// and are not ignored.
func TestFilesDockerfile(t *testing.T) {
	ignored := strings.Fields(read(t, ".dockerignore"))
	goVersion := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "go.mod"))[1]
	earlier := map[string]bool{}
	for _, s := range dockerfile(t) {
		image, tag, tagged := strings.Cut(s.from, ":")
		if !earlier[s.from] && (!tagged || tag == "latest") {
			t.Errorf("FROM %s: no earlier stage, and no image of a stated version", s.from)
		}
		if image == "golang" && !strings.HasPrefix(tag, goVersion+"-") {
			t.Errorf("FROM %s: go.mod says Go %s", s.from, goVersion)
		}
		if earlier[s.name] {
			t.Errorf("stage %s is there twice", s.name)
		}
		for _, step := range s.steps {
			known := []string{"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "HEALTHCHECK", "LABEL", "RUN", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}
			if !slices.Contains(known, step[0]) {
				t.Errorf("stage %s: unknown instruction %s", s.name, step[0])
			}
			if step[0] != "COPY" {
				continue
			}
			f := strings.Fields(step[1])
			if from, ok := strings.CutPrefix(f[0], "--from="); ok {
				if !earlier[from] {
					t.Errorf("stage %s: COPY --from=%s: no such stage before it", s.name, from)
				}
				continue
			}
			for _, source := range f[:len(f)-1] {
				if _, err := os.Stat(filepath.Join(root, source)); err != nil {
					t.Errorf("stage %s: COPY %s: %v", s.name, source, err)
				}
				if slices.Contains(ignored, strings.TrimSuffix(source, "/")) {
					t.Errorf("stage %s: COPY %s: .dockerignore leaves it out", s.name, source)
				}
			}
		}
		earlier[s.name] = true
	}
}

// Both images run as nobody in particular, say where they listen and whether
// they are well.
func TestFilesImages(t *testing.T) {
	stages := map[string]stage{}
	for _, s := range dockerfile(t) {
		stages[s.name] = s
	}
	for _, target := range []string{"aloft", "nvml"} {
		if !strings.Contains(read(t, "Makefile"), "--target "+target+" ") {
			t.Errorf("no target of the Makefile builds stage %s", target)
		}
		last := map[string]string{} // of each instruction, own or inherited
		binary := false
		for s, ok := stages[target]; ok; s, ok = stages[s.from] {
			for _, step := range slices.Backward(s.steps) {
				if _, set := last[step[0]]; !set {
					last[step[0]] = step[1]
				}
				binary = binary || step[0] == "COPY" && strings.HasSuffix(step[1], " /usr/local/bin/aloft")
			}
		}
		if user, _, _ := strings.Cut(last["USER"], ":"); user == "" || user == "0" {
			t.Errorf("%s runs as %q, want a number other than 0", target, last["USER"])
		} else if _, err := strconv.Atoi(user); err != nil {
			t.Errorf("%s runs as %q: Kubernetes can tell only a number from root", target, last["USER"])
		}
		var entry []string
		if err := json.Unmarshal([]byte(last["ENTRYPOINT"]), &entry); err != nil || len(entry) == 0 {
			t.Errorf("%s: ENTRYPOINT %s: want a JSON list, or signals end in a shell", target, last["ENTRYPOINT"])
		}
		if _, probe, ok := strings.Cut(last["HEALTHCHECK"], "CMD "); !ok || json.Unmarshal([]byte(probe), &entry) != nil {
			t.Errorf("%s: HEALTHCHECK %s: want CMD and a JSON list", target, last["HEALTHCHECK"])
		}
		if last["EXPOSE"] != "8080" || !binary {
			t.Errorf("%s: EXPOSE %q, binary copied: %v", target, last["EXPOSE"], binary)
		}
	}
}

// What the pages tell a reader to type exists.
func TestFilesCommands(t *testing.T) {
	k, err := kong.New(&cli{}, kong.Name("aloft"), kong.Writers(io.Discard, io.Discard), kong.Vars{"version": ""})
	if err != nil {
		t.Fatal(err)
	}
	makefile := read(t, "Makefile")
	made := regexp.MustCompile("(?m)(?:^|`|^step |, )make ([a-z]+)")
	typed := regexp.MustCompile("(?m)(?:^|`|\\s)(?:bin/)?aloft ([a-z][^`\n#|>]*)")
	fenced := regexp.MustCompile("(?s)```sh\n.*?```|`[^`\n]+`")
	n := 0
	for _, page := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "DECISIONS.md", "SECURITY.md", "docs/configuration.md", "docs/load.md", ".ci/run"} {
		text := read(t, page)
		if strings.HasSuffix(page, ".md") {
			text = strings.Join(fenced.FindAllString(text, -1), "\n")
		}
		for _, m := range made.FindAllStringSubmatch(text, -1) {
			if n++; !regexp.MustCompile(`(?m)^` + m[1] + `(-%)?:`).MatchString(makefile) {
				t.Errorf("%s: `make %s` is no target", page, m[1])
			}
		}
		for _, m := range typed.FindAllStringSubmatch(text, -1) {
			n++
			node := k.Model.Node
			for _, word := range strings.Fields(m[1]) {
				if i := slices.IndexFunc(node.Children, func(c *kong.Node) bool { return c.Name == word }); i >= 0 {
					node = node.Children[i]
					continue
				}
				if node == k.Model.Node {
					t.Errorf("%s: `aloft %s`: no command %q", page, m[1], word)
					break
				}
				if node.DefaultCmd != nil { // as kong does with what is no further command
					node = node.DefaultCmd
				}
				flag, isFlag := strings.CutPrefix(word, "--")
				flag, _, _ = strings.Cut(flag, "=")
				if isFlag && !slices.ContainsFunc(slices.Concat(node.AllFlags(false)...), func(f *kong.Flag) bool { return f.Name == flag }) {
					t.Errorf("%s: `aloft %s`: no flag --%s", page, m[1], flag)
				}
			}
		}
	}
	if n < 20 {
		t.Errorf("found %d commands in the pages: the search is wrong", n)
	}
}

// A configuration that the README shows works with the rest left out.
func TestFilesExamples(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(read(t, "README.md"), -1)
	for _, b := range blocks {
		text := b[1]
		if !strings.Contains(text, "models:") {
			text += "models:\n  - {name: m, engine: synthetic, endpoints: [embeddings]}\n"
		}
		if _, err := parseConfig([]byte(text)); err != nil {
			t.Errorf("README.md: %v\n%s", err, b[1])
		}
	}
	if len(blocks) < 3 {
		t.Errorf("README.md shows %d configurations", len(blocks))
	}
}

// A link within the repository leads somewhere.
func TestFilesLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)]*)?\)`)
	pages, err := fs.Glob(os.DirFS(root), "*.md")
	docs, err2 := fs.Glob(os.DirFS(root), "docs/*.md")
	if err != nil || err2 != nil || len(pages) < 7 || len(docs) < 3 {
		t.Fatalf("pages %v (%v), %v (%v)", pages, err, docs, err2)
	}
	for _, page := range append(pages, docs...) {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			if _, err := os.Stat(filepath.Join(root, path.Dir(page), m[1])); err != nil {
				t.Errorf("%s: link to %s: %v", page, m[1], err)
			}
		}
	}
}
