package io.github.leasehold;

import java.util.OptionalLong;

/** An operator's order named a grant that is gone. */
public final class HolderChangedException extends LeaseholdException {
    private static final long serialVersionUID = 1L;

    /** The newest token, or 0. */
    private final long token;

    HolderChangedException(String message, OptionalLong token) {
        super(message, Effect.NONE, null);
        this.token = token.orElse(0);
    }

    /**
     * The token of the newest grant.
     *
     * @return the token, if there is a grant
     */
    public OptionalLong token() {
        return token == 0 ? OptionalLong.empty() : OptionalLong.of(token);
    }
}
