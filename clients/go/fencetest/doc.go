// Package fencetest shows, against a real PostgreSQL, how a Go service has its database refuse a holder that has lost its
// lease. It is a module of its own, so that the client depends on nothing.
package fencetest
