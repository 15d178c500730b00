package io.github.leasehold;

import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;

/** Which resources of the overview to show, and in which order. Immutable: each method returns another query. */
public final class OverviewQuery {
    /** Orders of the items. */
    public enum Sort {
        /** Longest wait first. */
        WAIT,
        /** Longest hold first. */
        HOLD,
        /** By name. */
        NAME,
        /** Most waiters first. */
        WAITERS
    }

    private final Map<String, String> parameters;

    private OverviewQuery(Map<String, String> parameters) {
        this.parameters = parameters;
    }

    /**
     * Everything, longest wait first.
     *
     * @return the query
     */
    public static OverviewQuery all() {
        return new OverviewQuery(Map.of());
    }

    private OverviewQuery with(String name, String value) {
        Map<String, String> more = new LinkedHashMap<>(parameters);
        more.put(name, value);
        return new OverviewQuery(more);
    }

    /**
     * Only resources whose name contains this text, in upper or lower case.
     *
     * @param part a part of the name
     * @return the query
     */
    public OverviewQuery containing(String part) {
        return with("q", part);
    }

    /**
     * Only resources of this kind.
     *
     * @param kind the kind, as {@code report} in {@code report/42}
     * @return the query
     */
    public OverviewQuery kind(String kind) {
        return with("kind", kind);
    }

    /**
     * In this order.
     *
     * @param sort the order
     * @return the query
     */
    public OverviewQuery sort(Sort sort) {
        return with("sort", sort.name().toLowerCase(Locale.ROOT));
    }

    /**
     * From here on.
     *
     * @param next the {@link Overview#next()} of the page before
     * @return the query
     */
    public OverviewQuery after(String next) {
        return with("after", next);
    }

    /**
     * At most so many items.
     *
     * @param limit 1 to 200
     * @return the query
     */
    public OverviewQuery limit(int limit) {
        return with("limit", Integer.toString(limit));
    }

    Map<String, String> parameters() {
        return parameters;
    }
}
