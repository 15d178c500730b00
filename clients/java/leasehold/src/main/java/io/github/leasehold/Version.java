package io.github.leasehold;

/** The version of this client: a test compares it with the one of the package. */
final class Version {
    static final String VERSION = "0.1.0";

    private Version() {}
}
