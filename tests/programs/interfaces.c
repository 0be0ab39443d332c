// Prints the interfaces that getifaddrs() finds, with one address on each line.  Checks that the
// other functions that list interfaces agree with it.
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char* what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}

static void check_index(const char* name, unsigned index) {
  char found[IF_NAMESIZE];
  if (if_nametoindex(name) != index) die("if_nametoindex");
  if (if_indextoname(index, found) == NULL || strcmp(found, name) != 0) die("if_indextoname");
}

static void print_packet(const struct ifaddrs* entry) {
  const struct sockaddr_ll* packet = (const void*)entry->ifa_addr;
  check_index(entry->ifa_name, (unsigned)packet->sll_ifindex);
  if (entry->ifa_data == NULL) die("no statistics");
  printf("%s%s%s%s hardware type %u address ", entry->ifa_flags & IFF_UP ? " up" : "",
         entry->ifa_flags & IFF_RUNNING ? " running" : "",
         entry->ifa_flags & IFF_MULTICAST ? " multicast" : "",
         entry->ifa_flags & IFF_LOOPBACK ? " loopback" : "", packet->sll_hatype);
  for (int i = 0; i < packet->sll_halen; ++i)
    printf("%02x", ((const unsigned char*)packet->sll_addr)[i]);
}

static void print(const struct ifaddrs* entry) {
  char text[INET6_ADDRSTRLEN];
  printf("%s", entry->ifa_name);
  switch (entry->ifa_addr->sa_family) {
    case AF_INET:
      printf(" %s", inet_ntop(AF_INET, &((struct sockaddr_in*)entry->ifa_addr)->sin_addr, text,
                              sizeof text));
      printf(" mask %s", inet_ntop(AF_INET, &((struct sockaddr_in*)entry->ifa_netmask)->sin_addr,
                                   text, sizeof text));
      break;
    case AF_INET6:
      printf(" %s", inet_ntop(AF_INET6, &((struct sockaddr_in6*)entry->ifa_addr)->sin6_addr, text,
                              sizeof text));
      break;
    case AF_PACKET: print_packet(entry); break;
    default: printf(" family %d", entry->ifa_addr->sa_family);
  }
  printf("\n");
}

int main(void) {
  struct ifaddrs* all;
  if (getifaddrs(&all) != 0) die("getifaddrs");
  for (const struct ifaddrs* entry = all; entry != NULL; entry = entry->ifa_next) {
    if (entry->ifa_addr != NULL) print(entry);
  }
  freeifaddrs(all);
  struct if_nameindex* names = if_nameindex();
  if (names == NULL) die("if_nameindex");
  for (const struct if_nameindex* entry = names; entry->if_index != 0; ++entry)
    check_index(entry->if_name, entry->if_index);
  if_freenameindex(names);
  char name[IF_NAMESIZE];
  if (if_nametoindex("no-such-one") != 0 || errno != ENODEV) die("an unknown name has an index");
  if (if_indextoname(999999, name) != NULL || errno != ENXIO) die("an unknown index has a name");
  return 0;
}
