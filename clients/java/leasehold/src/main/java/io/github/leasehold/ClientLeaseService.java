package io.github.leasehold;

import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;

/** The service over a client. */
final class ClientLeaseService implements DistributedLeaseService {
    private final LeaseholdClient client;
    private final Engine engine;
    private final String label;
    private final Map<String, Object> identity;

    ClientLeaseService(LeaseholdClient client, Engine engine, String label, Map<String, Object> identity) {
        this.client = client;
        this.engine = engine;
        this.label = label;
        this.identity = identity;
    }

    @Override
    public Optional<LeaseHandle> tryAcquire(LeaseRequest request) {
        client.checkOpen();
        LeaseOptions options = LeaseOptions.defaults().ttl(request.ttl()).withoutRenewal();
        Map<String, Object> fields = new LinkedHashMap<>(identity);
        fields.putAll(options.fields(label));
        Claim claim = new Claim(request.resourceType() + "/" + request.resourceId(), request.ttl(), fields);
        Instant sent = Instant.now();
        try {
            Acquisition.Granted granted = new Acquisition(engine, claim, options, Optional.of(Duration.ZERO)).run();
            long token = request.fencingRequired() ? granted.grant().token().orElseThrow() : 0;
            return Optional.of(new LeaseHandle(claim.key(), claim.owner(), token, sent, granted.ttl()));
        } catch (BusyException busy) {
            return Optional.empty();
        }
    }

    @Override
    public boolean release(LeaseHandle handle) {
        Claim claim = Claim.ofKey(handle.lockKey(), handle.ownerToken(), handle.ttl());
        // A handle does not tell whether an earlier request to acquire went unanswered, and may still arrive.
        Protocol.ReleaseRequest request = new Protocol.ReleaseRequest(claim, Times.tombstone(handle.ttl()), Duration.ZERO);
        return Protocol.readRelease(client.call(Protocol.release(request, Acquisition.TIMEOUT)), claim);
    }

    @Override
    public boolean extend(LeaseHandle handle, Duration ttl) {
        Claim claim = Claim.ofKey(handle.lockKey(), handle.ownerToken(), handle.ttl());
        try {
            Protocol.Renewal renewal = new Protocol.Renewal(claim, ttl, handle.fencingToken());
            Protocol.readRenewal(client.call(Protocol.renewOne(renewal, Optional.empty(), Acquisition.TIMEOUT)), renewal);
            return true;
        } catch (LostException error) {
            return false;
        }
    }
}
