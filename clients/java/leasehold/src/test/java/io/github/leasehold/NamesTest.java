package io.github.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class NamesTest {
    @Test
    void keysAreEncodedAsTheServerDoes() {
        assertEquals("report/42", Names.keyOf("report/42"));
        assertEquals("acme:report/a%2Fb%20c%25", Names.keyOf("acme:report/a/b c%"));
        assertEquals("report/%C3%BC%F0%9F%98%80~".replace("~", "%7E"), Names.keyOf("report/ü\uD83D\uDE00~"));
        assertEquals("a/" + "x".repeat(256), Names.keyOf("a/" + "x".repeat(256)));
    }

    @ParameterizedTest
    @ValueSource(strings = {"report", "Report/1", "report/", "/1", "a b/1", "report/\u0007", "report/\u0085", "a:b:c/1", ":a/1", "a:/1", "a/\uD800"})
    void wrongNamesAreInvalid(String name) {
        assertThrows(InvalidException.class, () -> Names.keyOf(name));
    }

    @Test
    void longNamesAreInvalid() {
        assertThrows(InvalidException.class, () -> Names.keyOf("a/" + "x".repeat(257)));
        assertThrows(InvalidException.class, () -> Names.keyOf("a/" + "ü".repeat(129)));
        assertThrows(InvalidException.class, () -> Names.keyOf("a".repeat(65) + "/1"));
    }

    @Test
    void ownersAreRandom() {
        assertTrue(Names.newOwner().matches("[0-9a-f]{32}"));
        assertNotEquals(Names.newOwner(), Names.newOwner());
        assertEquals(32, Names.ownerHash(Names.newOwner()).length());
    }

    @Test
    void theVersionIsThatOfThePackage() throws IOException {
        assertTrue(Files.readString(Path.of("pom.xml")).contains("<version>" + Version.VERSION + "</version>"));
    }
}
