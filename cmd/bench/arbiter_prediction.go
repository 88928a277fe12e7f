package main

import "context"

func arbiterPrediction(ctx context.Context, l *lab, r *result) error { return nil }
