// Package known has servers whose every figure is known before they are asked:
// the null server that calibration measures the generator against, and the
// servers of the self-test.
package known
