#include "base/printable.h"

#include <gtest/gtest.h>

namespace verbena {
namespace {

TEST(Printable, KeepsOrdinaryTextOfAnyLanguage) {
  EXPECT_EQ(printable("rping -s"), "rping -s");
  EXPECT_EQ(printable("Grüße, 世界 🙂"), "Grüße, 世界 🙂");
  EXPECT_EQ(printable("a \"quote\" and a \\"), "a \"quote\" and a \\");
}

TEST(Printable, WritesControlCharactersAsHexadecimal) {
  EXPECT_EQ(printable("\033[2J"), "\\x1b[2J");
  EXPECT_EQ(printable("a\nb\r\t\x7f"), "a\\x0ab\\x0d\\x09\\x7f");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\xc2\\x9b31m");                               // the C1 control character CSI
  EXPECT_EQ(printable("\xe2\x80\xae"), "\\xe2\\x80\\xae");  // right-to-left override
}

TEST(Printable, WritesBytesThatAreNotUtf8AsHexadecimal) {
  EXPECT_EQ(printable("\x9b"), "\\x9b");
  EXPECT_EQ(printable("\xc3"), "\\xc3");                    // a character without its last byte
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");           // an overlong slash
  EXPECT_EQ(printable("\xe0\x80\x8a"), "\\xe0\\x80\\x8a");  // an overlong line break
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(printable("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80");
  EXPECT_EQ(printable("\xc3("), "\\xc3(");
}

TEST(Printable, EscapesQuotesAndBackslashesOfNames) {
  EXPECT_EQ(printable_name("bob's \"x\\y\""), "bob\\'s \\\"x\\\\y\\\"");
  EXPECT_EQ(printable_name("a\nb"), "a\\x0ab");
}

}  // namespace
}  // namespace verbena
