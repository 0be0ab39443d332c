// Prints each attribute of the first device and of its port as a line "NAME VALUE".  Flags have a
// line for each bit.  The test runs this program on Verbena and on Linux's soft-RoCE, and compares
// the outputs.
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <stdio.h>

#define CHECK(what)                                              \
  do {                                                           \
    if (!(what)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
      return 1;                                                  \
    }                                                            \
  } while (0)

static void print(const char* name, uint64_t value) { printf("%s %" PRIu64 "\n", name, value); }
static void print_hex(const char* name, uint64_t value) {
  printf("%s 0x%" PRIx64 "\n", name, value);
}
static void print_bits(const char* name, uint64_t value) {
  for (int bit = 0; bit < 64; ++bit) {
    printf("%s bit %d %s\n", name, bit, (value >> bit & 1) != 0 ? "yes" : "no");
  }
}
#define NUMBER(from, member) print(#member, (uint64_t)(from).member)
#define HEX(from, member) print_hex(#member, (uint64_t)(from).member)
#define BITS(from, member) print_bits(#member, (uint64_t)(from).member)

static void print_device(const struct ibv_device_attr_ex* attr) {
  const struct ibv_device_attr basic = attr->orig_attr;
  HEX(basic, max_mr_size);
  HEX(basic, page_size_cap);
  HEX(basic, vendor_id);
  HEX(basic, vendor_part_id);
  HEX(basic, hw_ver);
  NUMBER(basic, max_qp);
  NUMBER(basic, max_qp_wr);
  NUMBER(basic, max_sge);
  NUMBER(basic, max_sge_rd);
  NUMBER(basic, max_cq);
  NUMBER(basic, max_cqe);
  NUMBER(basic, max_mr);
  NUMBER(basic, max_pd);
  NUMBER(basic, max_qp_rd_atom);
  NUMBER(basic, max_ee_rd_atom);
  NUMBER(basic, max_res_rd_atom);
  NUMBER(basic, max_qp_init_rd_atom);
  NUMBER(basic, max_ee_init_rd_atom);
  NUMBER(basic, atomic_cap);
  NUMBER(basic, max_ee);
  NUMBER(basic, max_rdd);
  NUMBER(basic, max_mw);
  NUMBER(basic, max_raw_ipv6_qp);
  NUMBER(basic, max_raw_ethy_qp);
  NUMBER(basic, max_mcast_grp);
  NUMBER(basic, max_mcast_qp_attach);
  NUMBER(basic, max_total_mcast_qp_attach);
  NUMBER(basic, max_ah);
  NUMBER(basic, max_fmr);
  NUMBER(basic, max_map_per_fmr);
  NUMBER(basic, max_srq);
  NUMBER(basic, max_srq_wr);
  NUMBER(basic, max_srq_sge);
  NUMBER(basic, max_pkeys);
  NUMBER(basic, local_ca_ack_delay);
  NUMBER(basic, phys_port_cnt);
  BITS(*attr, device_cap_flags_ex);
  HEX(*attr, completion_timestamp_mask);
  NUMBER(*attr, hca_core_clock);
  HEX(attr->odp_caps, general_caps);
  HEX(attr->odp_caps.per_transport_caps, rc_odp_caps);
  HEX(attr->odp_caps.per_transport_caps, uc_odp_caps);
  HEX(attr->odp_caps.per_transport_caps, ud_odp_caps);
  HEX(*attr, xrc_odp_caps);
  NUMBER(attr->tso_caps, max_tso);
  HEX(attr->rss_caps, supported_qpts);
  NUMBER(*attr, max_wq_type_rq);
  HEX(attr->packet_pacing_caps, qp_rate_limit_max);
  HEX(*attr, raw_packet_caps);
  NUMBER(attr->tm_caps, max_num_tags);
  NUMBER(attr->cq_mod_caps, max_cq_count);
  NUMBER(*attr, max_dm_size);
  HEX(attr->pci_atomic_caps, fetch_add);
}

static void print_port(const struct ibv_port_attr* port) {
  NUMBER(*port, state);
  NUMBER(*port, max_mtu);
  NUMBER(*port, active_mtu);
  NUMBER(*port, gid_tbl_len);
  BITS(*port, port_cap_flags);
  NUMBER(*port, max_msg_sz);
  NUMBER(*port, bad_pkey_cntr);
  NUMBER(*port, qkey_viol_cntr);
  NUMBER(*port, pkey_tbl_len);
  NUMBER(*port, lid);
  NUMBER(*port, sm_lid);
  NUMBER(*port, lmc);
  NUMBER(*port, max_vl_num);
  NUMBER(*port, sm_sl);
  NUMBER(*port, subnet_timeout);
  NUMBER(*port, init_type_reply);
  NUMBER(*port, active_width);
  NUMBER(*port, active_speed);
  NUMBER(*port, phys_state);
  NUMBER(*port, link_layer);
  HEX(*port, flags);
  HEX(*port, port_cap_flags2);
}

int main(void) {
  struct ibv_device** const list = ibv_get_device_list(NULL);
  CHECK(list != NULL && list[0] != NULL);
  struct ibv_context* const device = ibv_open_device(list[0]);
  CHECK(device != NULL);
  struct ibv_device_attr_ex attr;
  struct ibv_port_attr port;
  CHECK(ibv_query_device_ex(device, NULL, &attr) == 0);
  CHECK(ibv_query_port(device, 1, &port) == 0);
  print("num_comp_vectors", (uint64_t)device->num_comp_vectors);
  print_device(&attr);
  print_port(&port);
  CHECK(ibv_close_device(device) == 0);
  ibv_free_device_list(list);
}
