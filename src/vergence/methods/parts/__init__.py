"""What methods on images share: views of a step, masks, teachers, tokens of transformers, heads."""
