// Views: a reservation of 32 MiB to 1 GiB directly in front of registered host memory, and a kernel that reads across the border.
// nvcc -O1 -arch=sm_90 -o views views.cu -lcuda && ./views
#include <cuda.h>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <cstdlib>
#include <cstdint>
#define CK(x) do{CUresult r=(x); if(r){const char*s;cuGetErrorName(r,&s);printf("%s -> %d %s\n",#x,r,s);} }while(0)
static const size_t PG=2<<20;
__global__ void sum(const unsigned long long*p,size_t n,unsigned long long*o){unsigned long long s=0;for(size_t i=blockIdx.x*(size_t)blockDim.x+threadIdx.x;i<n;i+=(size_t)gridDim.x*blockDim.x)s+=p[i];atomicAdd(o,s);}
int main(){ setbuf(stdout,0); cuInit(0); CUdevice dev; cuDeviceGet(&dev,0); CUcontext ctx; cuDevicePrimaryCtxRetain(&ctx,dev); cuCtxSetCurrent(ctx);
 CUdeviceptr arena; CK(cuMemAddressReserve(&arena,1ull<<40,PG,0,0)); CUdeviceptr small; CK(cuMemAddressReserve(&small,8*PG,PG,0,0)); printf("arena %llx small %llx\n",arena,small);
 CUdeviceptr od; CK(cuMemAlloc(&od,8));
 for(size_t zone: {4ull<<40, 1ull<<40}) for(size_t step: {32ull<<20,64ull<<20,256ull<<20,1ull<<30}){ CUdeviceptr z; CK(cuMemAddressReserve(&z,zone,PG,0,0)); CK(cuMemAddressFree(z,zone)); uint64_t base=(z+step-1)/step*step; printf("zone %zu GiB at %llx step %zu MiB:",zone>>30,z,step>>20);
  for(int k=0;k<3;k++){ uint64_t at=base+k*2*step, behind=at+step; void*p=mmap((void*)behind,8*PG,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS|MAP_FIXED_NOREPLACE,-1,0); bool placed=p==(void*)behind; if(placed){memset(p,1,8*PG);} CUdeviceptr v=0; CUresult r2=cuMemAddressReserve(&v,step,PG,at,0); CUresult r=placed?cuMemHostRegister(p,8*PG,CU_MEMHOSTREGISTER_PORTABLE):(CUresult)-1; printf(" [mmap %d reserve %d %s reg %d",placed,r2,v==at?"SAME":"other",r);
   if(v==at&&placed){ CUmemAllocationProp pr={}; pr.type=CU_MEM_ALLOCATION_TYPE_PINNED; pr.location.type=CU_MEM_LOCATION_TYPE_DEVICE; CUmemGenericAllocationHandle h[5]; CUdeviceptr from=behind-5*PG; CUmemAccessDesc ad={}; ad.location.type=CU_MEM_LOCATION_TYPE_DEVICE; ad.flags=CU_MEM_ACCESS_FLAGS_PROT_READWRITE; for(int i=0;i<5;i++){CK(cuMemCreate(&h[i],PG,&pr,0)); CK(cuMemMap(from+i*PG,PG,0,h[i],0));} CK(cuMemSetAccess(from,5*PG,&ad,1)); CK(cuMemsetD8(from,2,5*PG)); CK(cuMemsetD32(od,0,2)); sum<<<64,256>>>((unsigned long long*)from,13*PG/8,(unsigned long long*)od); unsigned long long res=0; CK(cuMemcpyDtoH(&res,od,8)); printf(" view %s",res==8*PG/8*0x0101010101010101ull+5*PG/8*0x0202020202020202ull?"right":"WRONG"); cuMemUnmap(from,5*PG); for(int i=0;i<5;i++)cuMemRelease(h[i]); }
   if(v)cuMemAddressFree(v,step); if(placed){cuMemHostUnregister(p); munmap(p,8*PG);} printf("]"); } printf("\n"); }
 return 0;}
