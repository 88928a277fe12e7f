package arrivals

import "fmt"

// Block is how many tokens a block of a prompt has: what one of the hash_ids of
// a Mooncake trace stands for.
const Block = 512

// maxTexts bounds the texts of a plan: as many as there are arrivals.
const maxTexts = MaxPlan

// Text is the prompt of one or more requests, by what it begins with: up to From
// tokens, which are whole blocks, it is what text number Parent is, and from there
// on its own. A request may have only the first part of its text.
type Text struct {
	Parent uint32 // number of an earlier one, from 1; 0 = there is none, and From is 0
	From   uint32
}

// block is the first prompt that had a block.
type block struct {
	text  uint32
	depth uint32 // of the block in it, in blocks
}

// prompts finds which prompts begin alike, by their blocks' numbers, as they come.
type prompts struct {
	blocks map[uint64]block
	texts  []Text
}

// take returns how many of a prompt's leading blocks an earlier one began with,
// and the number of its text; 0 if it has no blocks. A number stands for a block
// and all that is before it: where a trace breaks that, blocks are not the same.
func (p *prompts) take(ids []uint64) (shared int, text uint32) {
	for depth, id := range ids {
		b, ok := p.blocks[id]
		follows := ok && b.depth == uint32(depth) &&
			(b.text == text || p.texts[b.text-1] == Text{text, uint32(depth) * Block})
		if !follows {
			break
		}
		shared, text = shared+1, b.text
	}
	if shared == len(ids) || len(p.texts) == maxTexts {
		return shared, text
	}
	p.texts = append(p.texts, Text{text, uint32(shared) * Block})
	text = uint32(len(p.texts))
	for depth, id := range ids[shared:] {
		if _, ok := p.blocks[id]; !ok {
			p.blocks[id] = block{text, uint32(shared + depth)}
		}
	}
	return shared, text
}

// addTexts adds a trace's texts to the plan's, whose numbers go on.
func (b *builder) addTexts(texts []Text) {
	base := uint32(len(b.texts))
	for _, t := range texts {
		if t.Parent > 0 {
			t.Parent += base
		}
		b.texts = append(b.texts, t)
	}
}

// sharedBlocks counts the blocks that an earlier request began with.
func sharedBlocks(all []arrival) int {
	n := 0
	for _, a := range all {
		n += int(a.Shared+Block-1) / Block
	}
	return n
}

// checkTexts holds texts to what whoever writes them out relies on: each begins
// with an earlier one, further along in it than that began, and a request has
// one that is there.
func (p Plan) checkTexts() error {
	for i, t := range p.Texts {
		bad := t.Parent > uint32(i) || t.From%Block != 0 || (t.Parent == 0) != (t.From == 0)
		if bad || t.Parent > 0 && t.From <= p.Texts[t.Parent-1].From {
			return fmt.Errorf("text %d begins with %d tokens of text %d, which cannot be", i+1, t.From, t.Parent)
		}
	}
	shapes := p.Shapes
	if p.Warm != nil {
		shapes = append(shapes[:len(shapes):len(shapes)], p.Warm.Shapes...)
	}
	for i, s := range shapes {
		if s.Text > uint32(len(p.Texts)) || s.Copy >= maxCopies {
			return fmt.Errorf("shape %d has text %d, copy %d, of %d texts", i, s.Text, s.Copy, len(p.Texts))
		}
	}
	return nil
}
