package io.github.leasehold;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;

/** What one claim asks for. Its owner token is secret, and the same in all its requests. */
final class Claim {
    private final String resource;
    private final String key;
    private final String owner;
    private final String ownerHash;
    private final Map<String, Object> options;
    private final boolean isByKey;
    private volatile Duration ttl;

    Claim(String resource, Duration ttl, Map<String, Object> options) {
        this(resource, Names.keyOf(resource), ttl, options, Names.newOwner(), false);
    }

    private Claim(String resource, String key, Duration ttl, Map<String, Object> options, String owner, boolean isByKey) {
        this.resource = resource;
        this.key = key;
        this.ttl = ttl;
        this.options = options;
        this.isByKey = isByKey;
        this.owner = owner;
        this.ownerHash = Names.ownerHash(owner);
    }

    /** A claim of a handle, which has the key and not the name. */
    static Claim ofKey(String key, String owner, Duration ttl) {
        return new Claim(key, key, ttl, Map.of(), owner, true);
    }

    /** The same claim with a fresh owner token. */
    Claim again() {
        return new Claim(resource, key, ttl, options, Names.newOwner(), isByKey);
    }

    String resource() {
        return resource;
    }

    String key() {
        return key;
    }

    /** Secret: for requests only. */
    String owner() {
        return owner;
    }

    String ownerHash() {
        return ownerHash;
    }

    /** The ttl to ask for. */
    Duration ttl() {
        return ttl;
    }

    void setTtl(Duration ttl) {
        this.ttl = ttl;
    }

    Map<String, Object> options() {
        return options;
    }

    /** Whether an answer is about this claim. */
    boolean isNamedBy(Doc doc) {
        return hasKeyOf(doc) && doc.optText("owner_hash").filter(ownerHash::equals).isPresent();
    }

    /**
     * Whether a refusal is about this claim, or about its whole request, which need not name the claim. A verdict, as that others hold the
     * resource or that the claim has ended, always names it.
     */
    boolean isRefusedBy(Doc problem) {
        String kind = problem.optText("kind").orElse("");
        boolean isVerdict = problem.optText("verdict").isPresent() || kind.equals("lost") || kind.equals("contended");
        boolean namesOwner = problem.optText("owner_hash").isPresent();
        boolean namesOtherKey = problem.optText("key").isPresent() && !hasKeyOf(problem);
        return isNamedBy(problem) || !isVerdict && !namesOwner && !namesOtherKey;
    }

    private boolean hasKeyOf(Doc doc) {
        return doc.optText("key").filter(key::equals).isPresent();
    }

    /** What every request of the claim begins with. */
    Map<String, Object> reference() {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put(isByKey ? "key" : "resource", resource);
        fields.put("owner", owner);
        return fields;
    }

    @Override
    public String toString() {
        return resource + " (owner " + ownerHash + ")";
    }
}
