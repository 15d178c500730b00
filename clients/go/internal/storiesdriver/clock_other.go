//go:build !cgo || !linux

package main

const hasClock = false
