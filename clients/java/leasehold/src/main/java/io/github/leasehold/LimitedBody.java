package io.github.leasehold;

import java.io.ByteArrayOutputStream;
import java.net.http.HttpResponse.BodySubscriber;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow;

/** Collects the body of an answer, up to a limit. Fails at once, which closes the connection, if there is a reason to. */
final class LimitedBody implements BodySubscriber<byte[]> {
    private final int limit;
    private final RuntimeException refusal;
    private final CompletableFuture<byte[]> body = new CompletableFuture<>();
    private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    private Flow.Subscription subscription;

    private LimitedBody(int limit, RuntimeException refusal) {
        this.limit = limit;
        this.refusal = refusal;
    }

    static LimitedBody of(int limit) {
        return new LimitedBody(limit, null);
    }

    /** Reads nothing, and fails with this. */
    static LimitedBody refusing(RuntimeException refusal) {
        return new LimitedBody(0, refusal);
    }

    @Override
    public CompletionStage<byte[]> getBody() {
        return body;
    }

    @Override
    public void onSubscribe(Flow.Subscription newSubscription) {
        subscription = newSubscription;
        if (refusal == null) {
            subscription.request(Long.MAX_VALUE);
        } else {
            fail(refusal);
        }
    }

    private void fail(RuntimeException why) {
        // Cancelling in the middle of a body closes the connection.
        subscription.cancel();
        body.completeExceptionally(why);
    }

    @Override
    public void onNext(List<ByteBuffer> buffers) {
        for (ByteBuffer buffer : buffers) {
            if (bytes.size() + buffer.remaining() > limit) {
                fail(UnavailableException.unknown("the answer of the server is longer than " + limit + " bytes"));
                return;
            }
            byte[] chunk = new byte[buffer.remaining()];
            buffer.get(chunk);
            bytes.writeBytes(chunk);
        }
    }

    @Override
    public void onError(Throwable error) {
        body.completeExceptionally(error);
    }

    @Override
    public void onComplete() {
        body.complete(bytes.toByteArray());
    }
}
