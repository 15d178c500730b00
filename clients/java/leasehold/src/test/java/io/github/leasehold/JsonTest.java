package io.github.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class JsonTest {
    @Test
    void readsWhatItWrites() throws Json.JsonException {
        Map<String, Object> value = new LinkedHashMap<>();
        value.put("text", "a \"quoted\" \\ ü \u0007 \uD83D\uDE00 \u007f");
        value.put("numbers", Arrays.asList(0L, -1L, 999_999_999_999_999_999L));
        value.put("nested", Map.of("yes", true));
        value.put("nothing", null);
        assertEquals(value, Json.read(Json.write(value).getBytes(StandardCharsets.UTF_8)));
    }

    @Test
    void readsAllForms() throws Json.JsonException {
        assertEquals(List.of(1.5, -2e3, 0L, 1e30), Json.read(" [1.5, -2e3 ,0, 1000000000000000000000000000000]\n"));
        assertEquals("\b\f\n\r\t/\u00fc", Json.read("\"\\b\\f\\n\\r\\t\\/\\u00Fc\""));
        assertEquals(Map.of("a", 2L), Json.read("{\"a\":1,\"a\":2}"));
        assertEquals(List.of(), Json.read("[]"));
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "", " ", "{", "[1,]", "{\"a\"}", "{\"a\":1,}", "{a:1}", "01", "-", "1.", "1e", ".5", "+1", "tru", "nul", "\"a", "\"\\x\"",
                "\"\\u12g4\"", "\"\n\"", "1 2", "[1}", "NaN", "'a'", "{\"a\":1}x", "\"\\u00٣1\""
            })
    void refusesWhatIsNotJson(String text) {
        assertThrows(Json.JsonException.class, () -> Json.read(text));
    }

    @Test
    void isBoundedInDepth() throws Json.JsonException {
        Json.read("[".repeat(64) + "]".repeat(64));
        assertThrows(Json.JsonException.class, () -> Json.read("[".repeat(65) + "]".repeat(65)));
        assertThrows(Json.JsonException.class, () -> Json.read("{\"a\":".repeat(100_000)));
    }

    @Test
    void refusesWhatIsNotUtf8() {
        assertThrows(Json.JsonException.class, () -> Json.read(new byte[] {'"', (byte) 0xff, '"'}));
    }

    @Test
    void fieldsAreReadByType() {
        Doc doc = Doc.read("{\"text\":\"a\",\"number\":5,\"big\":99999999999,\"negative\":-1,\"token\":\"007\",\"none\":null}"
                .getBytes(StandardCharsets.UTF_8));
        assertEquals("a", doc.text("text"));
        assertEquals(5, doc.millis("number").toMillis());
        assertEquals(Integer.MAX_VALUE, doc.whole("big"));
        assertEquals(true, doc.optText("none").isEmpty());
        assertThrows(Doc.DocException.class, () -> doc.text("number"));
        assertThrows(Doc.DocException.class, () -> doc.text("missing"));
        assertThrows(Doc.DocException.class, () -> doc.millis("negative"));
        assertThrows(Doc.DocException.class, () -> doc.optToken("token"));
        assertThrows(Doc.DocException.class, () -> Doc.read("[]".getBytes(StandardCharsets.UTF_8)));
    }
}
